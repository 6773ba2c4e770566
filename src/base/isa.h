// The instruction-set levels we have kernels for, and which one this process uses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

enum class Isa : uint8_t {
  kScalar,      // the oracle; every machine
  kDotprod,     // aarch64: NEON with sdot, fp16
  kI8mm,        // aarch64: as above with smmla and bfmmla
  kAvx2,        // x86-64: AVX2, FMA, F16C
  kAvx512,      // x86-64: AVX-512 F/BW/DQ/VL with VNNI
  kAvx512Bf16,  // x86-64: as above with BF16
  kAmx,         // x86-64: as above with AMX-BF16 tiles
};

const char* name_of(Isa isa);

// Best first; the last is always kScalar.
std::vector<Isa> supported_isas();

// FATHOM_ISA from the environment, or the best. A name that is unknown or that this machine lacks is a
// UserError.
Isa choose_isa();

}  // namespace fathom
