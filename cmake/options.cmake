set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

set(FATHOM_SANITIZE "" CACHE STRING "sanitizers, as in -fsanitize=: address,undefined or thread")
option(FATHOM_FUZZ "build the fuzz targets with libFuzzer (needs clang)" OFF)
set(FATHOM_CUDA AUTO CACHE STRING "the CUDA backend: ON, OFF, or AUTO: where nvcc is (adds minutes)")
option(FATHOM_PRECOMPILE "precompiled headers: a third less to compile" ON)
set(FATHOM_JOIN 40000 CACHE STRING "bytes of a folder's sources that are compiled together as one; 0: each alone")
option(BUILD_TESTING "build the tests" ON)
if(BUILD_TESTING)
  enable_testing()
endif()

set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g -D_GLIBCXX_ASSERTIONS")
if(FATHOM_SANITIZE OR FATHOM_FUZZ)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1 -D_GLIBCXX_ASSERTIONS")
else()
  set(CMAKE_CXX_FLAGS_RELEASE "-O2")  # no NDEBUG: asserts stay on
endif()

# -ffp-contract=off: products and sums are rounded where the source says so, and a fused multiply-add is written
# std::fma. Otherwise a compiler could contract one kernel and not its twin, and rows would differ in the last bit.
set(flags -Wall -Wextra -Wshadow -ffp-contract=off -fno-math-errno -fno-semantic-interposition)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # g++ 13 reports fmt 9's big integers, g++ 12 strings that come from a precompiled header: both wrongly.
  list(APPEND flags -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict)
endif()
if(FATHOM_JOIN AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  list(APPEND flags -Wno-subobject-linkage)  # g++ takes the files that are joined for headers
endif()
if(FATHOM_SANITIZE)
  list(APPEND flags -fsanitize=${FATHOM_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    list(APPEND flags -Wno-maybe-uninitialized)  # g++ loses track of values through its own instrumentation
    if(FATHOM_SANITIZE MATCHES thread)
      list(APPEND flags -Wno-tsan)  # Asio has fences, which ThreadSanitizer does not follow
    endif()
  endif()
  add_link_options(-fsanitize=${FATHOM_SANITIZE})
endif()
if(FATHOM_FUZZ)
  list(APPEND flags -fsanitize=fuzzer-no-link)
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
if(NOT DEFINED CMAKE_COMPILE_WARNING_AS_ERROR)
  set(CMAKE_COMPILE_WARNING_AS_ERROR ON)  # cmake --compile-no-warning-as-error turns it off
endif()

find_program(FATHOM_CCACHE ccache)
if(FATHOM_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  # A file that uses a precompiled header is cached only with this sloppiness. Paths below the source folder count as
  # relative ones, so that every clone finds what another one compiled.
  set(ccache env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${FATHOM_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ccache})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${ccache})
  if(FATHOM_PRECOMPILE AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()
if(NOT CMAKE_CROSSCOMPILING)
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=mold FATHOM_MOLD)  # g++ knows the name from version 12.1
  if(FATHOM_MOLD)
    # mold 1.10 can put zeroed thread-local data, which no segment holds, at the end of an unmapped page before the
    # relocated data; such a program does not start. Segments that begin on pages of their own leave it no such page.
    add_link_options(-fuse-ld=mold -Wl,-z,separate-loadable-segments)
  endif()
endif()
