// Any bytes as a tokenizer.json: refused or loaded, and then a text goes through it.
#include <string_view>

#include "base/error.h"
#include "text/hf_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto tokenizer = fathom::hf_tokenizer({reinterpret_cast<const char*>(data), size}, {}, "fuzz");
    const auto ids = tokenizer->encode("The k\xC3\xA9\x65per's  12345\n<s>\xFF\xE4\xB8\xAD ships");
    tokenizer->decode(ids, true);
  } catch (const fathom::UserError&) {
  }
  return 0;
}
