#include "base/isa.h"

#include <cstdlib>

#include "base/format.h"
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fathom {

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kDotprod:
      return "dotprod";
    case Isa::kI8mm:
      return "i8mm";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

#if defined(__x86_64__)
namespace {

// The processor has tiles for bf16, and the kernel lets this process use them.
bool may_use_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kAmxBf16) || !(d & kAmxTile)) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace
#endif

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
#if defined(__aarch64__)
  const unsigned long caps = getauxval(AT_HWCAP), caps2 = getauxval(AT_HWCAP2);
  const bool dotprod = (caps & HWCAP_ASIMDDP) && (caps & HWCAP_ASIMDHP) && (caps & HWCAP_FPHP);
  if (dotprod && (caps & HWCAP_ASIMDFHM) && (caps2 & HWCAP2_I8MM) && (caps2 & HWCAP2_BF16))
    isas.push_back(Isa::kI8mm);
  if (dotprod) isas.push_back(Isa::kDotprod);
#elif defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni")) {
    if (__builtin_cpu_supports("avx512bf16")) {
      if (may_use_amx()) isas.push_back(Isa::kAmx);
      isas.push_back(Isa::kAvx512Bf16);
    }
    isas.push_back(Isa::kAvx512);
  }
  if (avx2) isas.push_back(Isa::kAvx2);
#endif
  isas.push_back(Isa::kScalar);
  return isas;
}

Isa choose_isa() {
  const std::vector<Isa> supported = supported_isas();
  const char* wanted = std::getenv("FATHOM_ISA");
  if (!wanted || !*wanted) return supported.front();
  std::string names;
  for (Isa isa : supported) {
    if (std::string_view(wanted) == name_of(isa)) return isa;
    names += std::string(names.empty() ? "" : ", ") + name_of(isa);
  }
  fail("FATHOM_ISA must be one of {} on this machine, got '{}'", names, printable(wanted));
}

}  // namespace fathom
