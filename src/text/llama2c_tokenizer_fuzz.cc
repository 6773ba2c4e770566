// Any bytes as a llama2.c tokenizer: refused or loaded, and then a text goes through it.
#include <string_view>

#include "base/error.h"
#include "text/llama2c_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto tokenizer = fathom::llama2c_tokenizer({reinterpret_cast<const char*>(data), size}, -1, "fuzz");
    const auto ids = tokenizer->encode("The k\xC3\xA9\x65per's  12345\n\xFF ships");
    tokenizer->decode(ids, true);
  } catch (const fathom::UserError&) {
  }
  return 0;
}
