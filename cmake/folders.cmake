# fathom_folder(NAME [AFTER FOLDER] [FAST | GLUE] [HEADER FILE] [LINK LIBRARIES...])
# makes fathom_NAME from src/NAME/*.cc (and *.cu), also one folder down, NAME_test from the *_test.cc there, and one
# program from each src/NAME/*_fuzz.cc. FAST: loops worth -O3. GLUE: none worth more than -O1. Files named *_<isa>.cc are built for that instruction set alone.

if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(FATHOM_ISA_FLAGS_dotprod -march=armv8.2-a+dotprod+fp16)
  set(FATHOM_ISA_FLAGS_i8mm -march=armv8.2-a+dotprod+fp16+i8mm+bf16+fp16fml)
  set(FATHOM_ISAS dotprod i8mm)
  set(FATHOM_OTHER_ISAS avx2 avx512 amx)
else()
  set(FATHOM_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
  set(FATHOM_ISA_FLAGS_avx512 ${FATHOM_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16)
  set(FATHOM_ISA_FLAGS_amx ${FATHOM_ISA_FLAGS_avx512} -mamx-tile -mamx-bf16)
  set(FATHOM_ISAS avx2 avx512 amx)
  set(FATHOM_OTHER_ISAS dotprod i8mm)
endif()

# The library sources of a folder for this architecture, each with its flags.
function(fathom_sources name result)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cc ${PROJECT_SOURCE_DIR}/src/${name}/*/*.cc)
  list(FILTER sources EXCLUDE REGEX "(_test|_fuzz|/cli/main)\\.cc$")
  foreach(isa ${FATHOM_OTHER_ISAS})
    list(FILTER sources EXCLUDE REGEX "_${isa}\\.cc$")
  endforeach()
  foreach(isa ${FATHOM_ISAS})
    set(isa_sources ${sources})
    list(FILTER isa_sources INCLUDE REGEX "_${isa}\\.cc$")
    set(isa_flags ${FATHOM_ISA_FLAGS_${isa}})
    if(FATHOM_SANITIZE MATCHES undefined)
      # Checks of every pointer make these loops ten times slower; AddressSanitizer alone watches what they touch.
      list(APPEND isa_flags -O2 -fno-sanitize=undefined)
    endif()
    set_source_files_properties(${isa_sources} PROPERTIES COMPILE_OPTIONS "${isa_flags}" SKIP_PRECOMPILE_HEADERS ON)
  endforeach()
  if(FATHOM_CUDA)
    file(GLOB cuda CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cu ${PROJECT_SOURCE_DIR}/src/${name}/*/*.cu)
    list(APPEND sources ${cuda})
    # Kernels keep their values in registers, or the build fails; attention over the cache waits for a better kernel.
    list(FILTER cuda EXCLUDE REGEX "/attention_cuda\\.cu$")
    set_source_files_properties(${cuda} PROPERTIES COMPILE_OPTIONS "-Xptxas=--warn-on-spills,--warning-as-error")
  endif()
  if(NOT sources)
    set(sources ${CMAKE_BINARY_DIR}/empty.cc)
    file(TOUCH ${sources})
  endif()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# fathom_precompile(TARGET GROUP HEADERS...): these and some common headers are compiled once for all targets of a group,
# which have the same flags. Headers of ours are named as in an #include.
function(fathom_precompile target group)
  if(NOT FATHOM_PRECOMPILE)
    return()
  endif()
  get_property(first GLOBAL PROPERTY "FATHOM_PRECOMPILED_${group}")
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
    return()
  endif()
  set_property(GLOBAL PROPERTY "FATHOM_PRECOMPILED_${group}" ${target})
  list(TRANSFORM ARGN REPLACE "^([^<].*)" "${PROJECT_SOURCE_DIR}/src/\\1")
  target_precompile_headers(${target} PRIVATE <algorithm> <atomic> <cmath> <functional> <map> <memory> <optional> <span>
                                              <string> <vector> <fmt/format.h> ${ARGN})
endfunction()

# What reads and writes JSON is glue, and `all` of some folders: with -O1 it compiles in three quarters of the time. Moves
# these sources of a folder into an object library and puts its objects into the folder's list instead.
function(fathom_glue name result header all)
  foreach(source ${${result}})
    file(STRINGS ${source} json REGEX "nlohmann/json\\.hpp")
    if(json OR all)
      list(APPEND glue ${source})
    endif()
  endforeach()
  if(NOT glue)
    return()
  endif()
  list(REMOVE_ITEM ${result} ${glue})
  add_library(fathom_${name}_glue OBJECT ${glue})
  target_compile_options(fathom_${name}_glue PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(fathom_${name}_glue PRIVATE $<TARGET_PROPERTY:fathom_${name},LINK_LIBRARIES>)
  target_include_directories(fathom_${name}_glue PRIVATE ${PROJECT_SOURCE_DIR}/src)
  fathom_precompile(fathom_${name}_glue "glue_${header}" <nlohmann/json.hpp> ${header})
  set(${result} ${${result}} $<TARGET_OBJECTS:fathom_${name}_glue> PARENT_SCOPE)
endfunction()

function(fathom_fast target)
  if(NOT FATHOM_SANITIZE AND NOT FATHOM_FUZZ)
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O3>)
  endif()
endfunction()

function(fathom_folder name)
  cmake_parse_arguments(arg "FAST;GLUE" "AFTER;HEADER" "LINK" ${ARGN})
  fathom_sources(${name} sources)
  fathom_glue(${name} sources "${arg_HEADER}" ${arg_GLUE})
  add_library(fathom_${name} STATIC ${sources})
  set_target_properties(fathom_${name} PROPERTIES EXPORT_NAME ${name} LINKER_LANGUAGE CXX)
  target_include_directories(fathom_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
                                                   $<INSTALL_INTERFACE:include>)
  target_compile_features(fathom_${name} PUBLIC cxx_std_20)
  target_link_libraries(fathom_${name} PUBLIC ${arg_LINK})
  if(arg_AFTER)
    target_link_libraries(fathom_${name} PUBLIC fathom_${arg_AFTER})
  endif()
  if(arg_FAST)
    fathom_fast(fathom_${name})
  endif()
  if(NOT arg_GLUE)
    fathom_precompile(fathom_${name} "${arg_HEADER}_${arg_FAST}" ${arg_HEADER})
  endif()
  set_property(GLOBAL APPEND PROPERTY FATHOM_FOLDERS ${name})

  if(BUILD_TESTING)
    file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*_test.cc ${PROJECT_SOURCE_DIR}/src/${name}/*/*_test.cc)
    fathom_test(${name}_test ${name} fathom_${name} ${tests})
    file(GLOB fuzzers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*_fuzz.cc)
    foreach(fuzzer ${fuzzers})
      fathom_fuzzer(${fuzzer} fathom_${name})
    endforeach()
  endif()
endfunction()

# One GoogleTest program. Its cases are ctest's tests PREFIX.Suite.Case; under a sanitizer the program is one to four
# tests PREFIX.0, PREFIX.1, …, because looking for leaks takes seconds at the end of every process (g++ 12 on aarch64: four).
include(GoogleTest)
# A file, not -D: clones share what the compiler's cache has of every test that names no path.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/paths/support/test_paths.h @ONLY CONTENT [[
#pragma once
#define FATHOM_SOURCE_DIR "@PROJECT_SOURCE_DIR@"
#define FATHOM_TEST_DATA FATHOM_SOURCE_DIR "/tests/data"
#define FATHOM_BINARY "@CMAKE_BINARY_DIR@/fathom"
]])
function(fathom_test target prefix library)
  if(NOT ARGN)
    return()
  endif()
  add_executable(${target} ${ARGN} ${PROJECT_SOURCE_DIR}/tests/support/heap_allocations.cc)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${CMAKE_BINARY_DIR}/paths)
  target_link_libraries(${target} PRIVATE ${library} GTest::gtest GTest::gtest_main)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)  # a third less to wait for than -O2
  fathom_precompile(${target} tests <gtest/gtest.h>)
  if(FATHOM_SANITIZE)
    set(asan ASAN_OPTIONS=allocator_may_return_null=1)
    if(prefix STREQUAL end_to_end)  # runs many programs: leaks are looked for in the folders' own tests
      string(APPEND asan :detect_leaks=0)
    endif()
    set(last 0)
    if(prefix MATCHES "^(skip|infer|train|end_to_end)$")  # minutes long: in four parts
      set(last 3)
    endif()
    math(EXPR shards "${last} + 1")
    foreach(shard RANGE ${last})
      add_test(NAME ${prefix}.${shard} COMMAND ${target})
      set_tests_properties(${prefix}.${shard} PROPERTIES ENVIRONMENT
                           "${asan};GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${shard}")
    endforeach()
  else()
    # Asked for its cases by ctest, not by the build: a program that cannot start is then a failed test.
    gtest_discover_tests(${target} DISCOVERY_TIMEOUT 60 TEST_PREFIX ${prefix}. DISCOVERY_MODE PRE_TEST)
  endif()
endfunction()

# A fuzz target: with libFuzzer when FATHOM_FUZZ is on, otherwise a plain program that replays the files it is given.
# Either way its corpus is a test.
function(fathom_fuzzer source library)
  get_filename_component(target ${source} NAME_WE)
  add_executable(${target} ${source})
  target_link_libraries(${target} PRIVATE ${library})
  if(FATHOM_FUZZ)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/replay_main.cc)
  endif()
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzzers)
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers ${target})
  add_test(NAME fuzz_corpus.${target} COMMAND ${target} -runs=0 ${PROJECT_SOURCE_DIR}/tests/corpus/${target})
endfunction()

# build_info.cc: rewritten only when what it says changed, so that a commit rebuilds one file.
function(fathom_build_info target)
  set(file ${CMAKE_BINARY_DIR}/build_info.cc)
  add_custom_target(build_info_file BYPRODUCTS ${file}
    COMMAND ${CMAKE_COMMAND} -DOUT=${file} -DSOURCE=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
            "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" -DBLAS=none
            -DCUDA=${FATHOM_CUDA_VERSION} -P ${PROJECT_SOURCE_DIR}/cmake/build_info.cmake)
  target_sources(${target} PRIVATE ${file})
  add_dependencies(${target} build_info_file)
endfunction()
