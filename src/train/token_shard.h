// A source's tokens on disk: written once, mapped afterwards, named by what they were made from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "io/atomic_file.h"

namespace fathom {

// File: "FATHOMTK", u32 version, u32 0 | tokens (u32 each, encode_document.h; a zero more where their number
// is odd) | document ends (u64 each, in tokens) | u64 tokens, u64 documents, u64 largest id + 1, u64 masked,
// u64 CRC-32C of all before it,
// "KTMOHTAF". Little-endian.
class TokenShardWriter {
 public:
  explicit TokenShardWriter(const std::string& path);
  void add(std::span<const uint32_t> document);  // empty ones are left out
  void commit();

 private:
  void put(std::span<const std::byte> bytes);

  AtomicFile file_;
  uint32_t sum_ = 0;  // of what was put
  std::vector<uint64_t> ends_;
  uint64_t tokens_ = 0, ids_ = 0;
  bool masked_ = false;
};

class TokenShard {
 public:
  // Anything but a file that the writer made, byte for byte, is a UserError.
  static std::shared_ptr<const TokenShard> open(const std::string& path);
  static std::shared_ptr<const TokenShard> parse(std::span<const std::byte> bytes,
                                                 std::shared_ptr<const void> owner, const std::string& name);

  std::span<const uint32_t> tokens() const { return tokens_; }
  int64_t documents() const { return static_cast<int64_t>(ends_.size()); }
  int64_t begin_of(int64_t document) const {
    return document == 0 ? 0 : static_cast<int64_t>(ends_[static_cast<size_t>(document - 1)]);
  }
  int64_t end_of(int64_t document) const {
    return static_cast<int64_t>(ends_[static_cast<size_t>(document)]);
  }
  int64_t document_of(int64_t token) const;   // which document holds it
  int64_t ids() const { return ids_; }        // largest id + 1
  uint32_t checksum() const { return sum_; }  // of the tokens and where documents end
  bool masked() const { return masked_; }     // some tokens are context only (besides BOS)

 private:
  std::shared_ptr<const void> owner_;
  std::span<const uint32_t> tokens_;
  std::span<const uint64_t> ends_;
  int64_t ids_ = 0;
  uint32_t sum_ = 0;
  bool masked_ = false;
};

}  // namespace fathom
