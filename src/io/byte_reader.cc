#include "io/byte_reader.h"

#include "base/format.h"

namespace fathom {

void ByteReader::fail_truncated(uint64_t needed, const char* what) const {
  fail("{}: truncated: {} needs {} bytes at byte {}, {} are left", where_, what, needed, at_, left());
}

}  // namespace fathom
