// Protocol buffers' wire format, read field by field, every length checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom {

class ProtobufReader {
 public:
  ProtobufReader(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  // Moves to the next field; false at the end.
  bool next();
  uint32_t field() const { return field_; }

  // The value of the field, which must be of this kind: UserError otherwise.
  uint64_t varint() const;
  int32_t int32() const { return static_cast<int32_t>(varint()); }
  bool boolean() const { return varint() != 0; }
  float float32() const;
  std::string_view bytes() const;

 private:
  [[noreturn]] void bad(const char* what) const;
  uint64_t read_varint();

  std::string_view bytes_;
  const std::string& where_;
  size_t at_ = 0;
  uint32_t field_ = 0, wire_type_ = 0;
  uint64_t value_ = 0;      // of a varint or a fixed number
  std::string_view block_;  // of a length-delimited field
};

}  // namespace fathom
