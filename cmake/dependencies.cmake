# Everything comes from the distribution (tools/install_packages.sh has the names), except CUDA.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)

# PkgConfig::NAME. Only the later folders need these: where one is missing, the folders before them can still be built and
# tested (on a GPU machine, say), and building a target that needs it says so.
function(fathom_late_package name module)
  pkg_check_modules(${name} IMPORTED_TARGET GLOBAL ${module})
  if(${name}_FOUND)
    return()
  endif()
  message(WARNING "${module} was not found: src/text and what comes after it cannot be built")
  add_custom_target(missing_${module} COMMAND ${CMAKE_COMMAND} -E echo "${module} is needed: install it and configure again"
                                      COMMAND ${CMAKE_COMMAND} -E false)
  add_library(PkgConfig::${name} INTERFACE IMPORTED GLOBAL)
  add_dependencies(PkgConfig::${name} missing_${module})
endfunction()
fathom_late_package(PCRE2 libpcre2-8)
fathom_late_package(UTF8PROC libutf8proc)
fathom_late_package(EDIT libedit)
find_package(Boost 1.74 REQUIRED)  # headers: Beast and Asio, in src/serve
find_package(OpenSSL 3 REQUIRED)

if(BUILD_TESTING)
  find_package(GTest REQUIRED)
endif()
find_package(benchmark)  # bench/ only
pkg_check_modules(OPENBLAS IMPORTED_TARGET openblas)  # bench/ only: what our products are held against

set(FATHOM_CUDA_VERSION none)
if(FATHOM_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER AND FATHOM_CUDA STREQUAL AUTO)
    set(FATHOM_CUDA OFF)  # in this run alone: a toolkit that comes later is found
  elseif(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "FATHOM_CUDA is ON but no nvcc was found: put it on the PATH or set CMAKE_CUDA_COMPILER")
  endif()
endif()
if(FATHOM_CUDA)
  set(FATHOM_CUDA ON)
  add_compile_definitions(FATHOM_HAS_CUDA)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real)
  elseif(CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90(-|;|$)")
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES names 90, which lacks Hopper's matrix instructions: name 90a")
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  set(FATHOM_CUDA_VERSION ${CUDAToolkit_VERSION})
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3")  # no NDEBUG, as in options.cmake
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know that nvcc has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  # -fmad=false: as -ffp-contract=off in options.cmake; a fused multiply-add is written fmaf.
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-Xcompiler=-Wall,-Wextra,-Wshadow>")
endif()
