// Any text as a list, dict or string that Python printed: refused or read.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/python_literal.h"
#include "text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (!fathom::is_valid_utf8(text)) return 0;
  try {
    fathom::parse_python_literal(text).dump();  // throws what is no UserError when it is no UTF-8
  } catch (const fathom::UserError&) {
  }
  return 0;
}
