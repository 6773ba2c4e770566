// Any bytes as a tiktoken rank file: refused or loaded, and then a text goes through it.
#include <string_view>

#include "base/error.h"
#include "text/tiktoken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fathom::TiktokenRules kRules = fathom::llama3_rules();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    fathom::is_tiktoken(text);
    const auto tokenizer = fathom::tiktoken_tokenizer(text, kRules, "fuzz");
    const auto ids = tokenizer->encode("The k\xC3\xA9\x65per's  12345\n<|eot_id|>\xFF ships");
    tokenizer->decode(ids, true);
  } catch (const fathom::UserError&) {
  }
  return 0;
}
