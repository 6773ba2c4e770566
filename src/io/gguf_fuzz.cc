#include "io/fuzz_bytes.h"
#include "io/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom;
  try {
    const auto file = GgufFile::parse(fuzz_bytes(data, size), nullptr, "fuzz");
    for (const GgufTensorInfo& info : file->tensors()) touch_ends(file->tensor(info));
    for (const GgufKeyValue& kv : file->metadata()) {
      if (file->find(kv.key) != &kv.value) __builtin_trap();
    }
  } catch (const UserError&) {
  }
  return 0;
}
