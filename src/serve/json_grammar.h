// The JSON texts that a schema allows, in a form that is read byte by byte (json_machine.h).
//
// Layout: no space but at most one behind each ':' and ','; declared properties in their order.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "serve/byte_dfa.h"

namespace fathom {

class JsonGrammar {
 public:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  static constexpr uint32_t kUnbounded = kNone;
  static constexpr int kMostDepth = 64;  // values inside each other, the outermost included

  using ValueId = uint32_t;
  using PartId = uint32_t;

  struct Property {
    std::string name;
    std::string key;  // as it is written, without the first quote
    ValueId value = kNone;
    bool required = false;
  };

  enum class Kind : uint8_t {
    kDfa,  // literals, numbers, strings of a pattern
    kString,
    kObject,
    kArray,
  };
  // One kind of value. Only the fields of its kind are used.
  struct Part {
    Kind kind = Kind::kDfa;
    int height = kMostDepth + 1;  // values inside each other at least, this one included
    ByteDfa dfa = {};
    uint32_t least = 0, most = kUnbounded;  // characters of a string, items of an array
    std::vector<Property> properties = {};
    std::vector<uint32_t> required_from = {};  // (properties + 1): the next required one, or their number
    std::vector<uint32_t> by_key = {};         // the properties' places, in the order of their keys
    ValueId additional = kNone;                // of other properties; none: there are no others
    std::vector<std::string> reserved = {};    // names that are no other properties', sorted
    std::vector<ValueId> prefix = {};
    ValueId items = kNone;  // behind the prefix; none: there are none
  };

  struct Value {
    int height = kMostDepth + 1;
    std::vector<PartId> parts = {};     // any of these
    std::vector<ValueId> same_as = {};  // while it is built: what these allow, too
  };

  ValueId add_value();
  PartId add_part(Part part);
  // Follows `same_as`, and leaves out what no finite text can be.
  void finish(CompileBudget& budget);

  std::vector<Value> values;
  std::vector<Part> parts;
  ValueId root = 0;

 private:
  void flatten(CompileBudget& budget);
  bool measure();
  int height_of(const Part& part) const;
  void trim(Part& part) const;
};

}  // namespace fathom
