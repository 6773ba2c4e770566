// Reads a JSON text byte by byte, as a grammar allows it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/json_grammar.h"

namespace fathom {

// Reads bytes and takes them back. A text can be read in several ways where alternatives begin alike: all of
// them are followed, at most kMostWays. Every way can still end well, so that leaving one out may forbid
// texts but never leaves none.
class JsonMachine {
 public:
  static constexpr size_t kMostWays = 32;

  explicit JsonMachine(std::shared_ptr<const JsonGrammar> grammar);

  // Returns whether some text of the grammar goes on with `byte`. If none does, nothing changes.
  bool step(uint8_t byte);
  void back(size_t bytes);
  bool complete() const;  // the text is one of the grammar's
  const std::string& text() const { return text_; }

  // Counts beginnings and continuations of values that were tried since the start, and a try for each kLooks
  // names of properties that were looked at. A mask's time depends on this.
  static constexpr size_t kLooks = 16;
  uint64_t tries() const { return tries_; }
  // Once tries() has reached `most`, a byte follows the first of the ways alone, and so may be refused though
  // another way has it. kNoBound: never.
  void bound_tries(uint64_t most) { most_tries_ = most; }
  static constexpr uint64_t kNoBound = UINT64_MAX;

  // Characters that may follow, whatever they are, where each is written as it is: inside a string, between
  // two characters. 0 elsewhere, and where the ways do not agree.
  uint32_t plain_room() const;
  // What may follow depends on this alone.
  void signature(std::string& out) const;

 private:
  using ValueId = JsonGrammar::ValueId;
  using PartId = JsonGrammar::PartId;
  using Part = JsonGrammar::Part;

  enum Phase : uint8_t {
    kDone,        // of the root: its value has been read
    kFirst,       // of the root: before its value; of others: behind the bracket
    kDeclared,    // inside the key of a declared property
    kFree,        // inside another key
    kColon,       // before ':'
    kColonSpace,  // behind it
    kValue,       // behind its space
    kAfter,       // behind a value
    kComma,       // behind ','
    kCommaSpace,  // behind its space
  };
  // A value that has begun, inside another one. Frames never change: bytes that are taken back leave those
  // before them as they were.
  struct Frame {
    uint32_t parent = 0;
    PartId part = JsonGrammar::kNone;  // none: the root
    Phase phase = kFirst;
    uint8_t inside = 0;  // a character: see kBetween in json_machine.cc
    uint16_t depth = 0;
    uint32_t count = 0;  // the DFA's state; characters; items; of an object: properties that are passed
    uint32_t which = 0;  // inside a declared key: the first in by_key that begins as it does; the value that
                         // follows ':'
    uint32_t until = 0;  // inside a declared key: the end of those that begin as it does
    uint32_t place = 0;  // within a declared key; where another key begins in the text
    uint32_t used = 0;   // the other keys so far, as an index of keys_
  };
  struct Key {
    uint32_t before;  // another index
    uint32_t begin, size;
  };
  // Sizes before a byte.
  struct Level {
    size_t ways, frames, keys;
  };

  const Part& part_of(const Frame& frame) const { return grammar_->parts[frame.part]; }
  bool fits(ValueId value, const Frame& around) const;

  void add_way(uint32_t top);
  void add_frame(const Frame& frame);
  void advance(uint32_t top, uint8_t byte);
  void advance_dfa(const Frame& frame, uint8_t byte);
  void advance_string(uint32_t top, uint8_t byte);
  void advance_array(const Frame& frame, uint8_t byte);
  void advance_object(const Frame& frame, uint8_t byte);
  void begin_value(ValueId value, const Frame& after, uint8_t byte);
  void begin_part(PartId id, uint32_t parent, uint8_t byte);
  void add_dfa(PartId id, uint32_t parent, uint32_t state);
  void begin_item(const Frame& frame, uint8_t byte);
  void begin_key(const Frame& frame);
  bool may_come(const Frame& frame, uint32_t property) const;
  bool any_declared(const Frame& frame);
  bool any_between(const Frame& frame, uint32_t first, uint32_t until);
  void advance_declared(const Frame& frame, uint8_t byte);
  void advance_free(const Frame& frame, uint8_t byte);
  bool taken(const Frame& frame, std::string_view name);
  bool more_keys(const Frame& frame);
  bool more_items(const Frame& frame) const;

  std::span<const uint32_t> ways() const;
  bool same(uint32_t a, uint32_t b) const;
  uint32_t room_of(const Frame& frame) const;
  void sign(const Frame& frame, std::string& out) const;

  std::shared_ptr<const JsonGrammar> grammar_;
  std::string text_;
  std::vector<uint32_t> ways_;  // of every byte, one behind the other: innermost frames
  std::vector<Frame> frames_;   // 0: the root before its value; 1: behind it
  std::vector<Key> keys_;       // 0: none
  std::vector<Level> levels_;   // by byte
  uint64_t tries_ = 0, most_tries_ = kNoBound;
};

}  // namespace fathom
