#include "io/ggml_type.h"

#include <array>

namespace fathom {
namespace {

// In the order of their ids. Q4_2, Q4_3 and the interleaved ones (_4_4, _4_8, _8_8) were removed from the
// format.
constexpr std::array<const char*, 43> kNames{
    "F32",      "F16",      "Q4_0",    "Q4_1",  "Q4_2",       "Q4_3",       "Q5_0",       "Q5_1",
    "Q8_0",     "Q8_1",     "Q2_K",    "Q3_K",  "Q4_K",       "Q5_K",       "Q6_K",       "Q8_K",
    "IQ2_XXS",  "IQ2_XS",   "IQ3_XXS", "IQ1_S", "IQ4_NL",     "IQ3_S",      "IQ2_S",      "IQ4_XS",
    "I8",       "I16",      "I32",     "I64",   "F64",        "IQ1_M",      "BF16",       "Q4_0_4_4",
    "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",
    "NVFP4",    "Q1_0",     "Q2_0",
};

}  // namespace

std::string ggml_type_name(uint32_t id) {
  return id < kNames.size() ? kNames[id] : "";
}

std::string supported_ggml_types() {
  std::string names;
  for (int i = 0; i < kDTypes; ++i) {
    const int id = traits(static_cast<DType>(i)).ggml_type;
    if (id >= 0) names += (names.empty() ? "" : ", ") + ggml_type_name(static_cast<uint32_t>(id));
  }
  return names;
}

bool dtype_of_ggml_id(uint32_t id, DType* dtype) {
  return id < kNames.size() && dtype_of_ggml(static_cast<int>(id), dtype);
}

}  // namespace fathom
