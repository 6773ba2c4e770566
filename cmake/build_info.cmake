execute_process(COMMAND git -C ${SOURCE} describe --always --dirty=+ --abbrev=9 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
#include "base/build_info.h"

namespace fathom {

const BuildInfo& build_info() {
  static constexpr BuildInfo kInfo{"@VERSION@", "@commit@", "@COMPILER@", "@BLAS@", "@CUDA@"};
  return kInfo;
}

}  // namespace fathom
]])
