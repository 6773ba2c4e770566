#include "io/fuzz_bytes.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom;
  try {
    const auto file = SafetensorsFile::parse(fuzz_bytes(data, size), nullptr, "fuzz");
    for (const NamedTensor& entry : file->tensors()) {
      touch_ends(entry.tensor);
      if (file->find(entry.name) != &entry.tensor) __builtin_trap();
    }
  } catch (const UserError&) {
  }
  return 0;
}
