// Any bytes as a GGUF file with a vocabulary: refused or loaded, and then a text goes through it.
#include <span>

#include "base/error.h"
#include "io/gguf.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto file = fathom::GgufFile::parse(std::as_bytes(std::span(data, size)), nullptr, "fuzz");
    const auto tokenizer = fathom::tokenizer_from_gguf(*file);
    const auto ids = tokenizer->encode("The k\xC3\xA9\x65per's  12345\n<s>\xFF ships");
    tokenizer->decode(ids, true);
  } catch (const fathom::UserError&) {
  }
  return 0;
}
