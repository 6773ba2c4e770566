// Any bytes as a SentencePiece model: refused or loaded, and then a text goes through it.
#include <string_view>

#include "base/error.h"
#include "text/sentencepiece.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto tokenizer =
        fathom::sentencepiece_tokenizer({reinterpret_cast<const char*>(data), size}, {}, "fuzz");
    const auto ids =
        tokenizer->encode("The k\xC3\xA9\x65per\xC2\xA0  <tool> 12345\n<s>\xFF\xEF\xAC\x81 ships");
    tokenizer->decode(ids, true);
  } catch (const fathom::UserError&) {
  }
  return 0;
}
