// Any bytes as a regex of a tokenizer file: refused or compiled, and then it cuts a short text.
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/regex.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 200) return 0;  // long patterns only take long
  try {
    const fathom::Regex regex({reinterpret_cast<const char*>(data), size});
    std::vector<fathom::TextSpan> spans;
    regex.split("The keeper's 12 \xE4\xB8\xAD\n", spans);
  } catch (const fathom::UserError&) {
  }
  return 0;
}
