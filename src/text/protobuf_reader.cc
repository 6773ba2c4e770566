#include "text/protobuf_reader.h"

#include <cstring>

#include "base/format.h"

namespace fathom {
namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBlock = 2, kFixed32 = 5 };

}  // namespace

void ProtobufReader::bad(const char* what) const {
  fail("{}: not a SentencePiece model: {} at byte {}", where_, what, at_);
}

uint64_t ProtobufReader::read_varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at_ >= bytes_.size()) bad("a number is cut off");
    const auto byte = static_cast<uint8_t>(bytes_[at_++]);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  bad("a number is too long");
}

bool ProtobufReader::next() {
  if (at_ >= bytes_.size()) return false;
  const uint64_t tag = read_varint();
  if (tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF) bad("a bad field number");
  field_ = static_cast<uint32_t>(tag >> 3);
  wire_type_ = tag & 7;
  size_t size = 0;
  switch (wire_type_) {
    case kVarint:
      value_ = read_varint();
      return true;
    case kFixed64:
      size = 8;
      break;
    case kFixed32:
      size = 4;
      break;
    case kBlock: {
      const uint64_t length = read_varint();
      if (length > bytes_.size() - at_) bad("a field is longer than the file");
      size = length;
      break;
    }
    default:
      bad("a bad wire type");
  }
  if (size > bytes_.size() - at_) bad("a field is cut off");
  block_ = bytes_.substr(at_, size);
  at_ += size;
  return true;
}

uint64_t ProtobufReader::varint() const {
  if (wire_type_ != kVarint) bad("a field that should be a whole number");
  return value_;
}

float ProtobufReader::float32() const {
  if (wire_type_ != kFixed32) bad("a field that should be a float");
  float value;
  std::memcpy(&value, block_.data(), sizeof value);
  return value;
}

std::string_view ProtobufReader::bytes() const {
  if (wire_type_ != kBlock) bad("a field that should be a text");
  return block_;
}

}  // namespace fathom
