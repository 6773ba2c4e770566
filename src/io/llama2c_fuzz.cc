#include "io/fuzz_bytes.h"
#include "io/llama2c.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom;
  const bool recognised = looks_like_llama2c(fuzz_bytes(data, size), size);
  try {
    const auto file = Llama2cFile::parse(fuzz_bytes(data, size), nullptr, "fuzz");
    for (const NamedTensor& entry : file->tensors()) touch_ends(entry.tensor);
    if (!recognised) __builtin_trap();
  } catch (const UserError&) {
    if (recognised) __builtin_trap();
  }
  return 0;
}
