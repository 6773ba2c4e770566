# fathom_folder(NAME [AFTER FOLDER] [FAST | GLUE] [LINK LIBRARIES...])
# makes fathom_NAME from src/NAME/*.cc (and *.cu), also one folder down, NAME_test from the *_test.cc there, and one
# program from each src/NAME/*_fuzz.cc. FAST: loops worth -O3. GLUE: none worth more than -O1. Files named *_<isa>.cc are built for that instruction set alone.

if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(FATHOM_ISA_FLAGS_dotprod -march=armv8.2-a+dotprod+fp16)
  set(FATHOM_ISA_FLAGS_i8mm -march=armv8.2-a+dotprod+fp16+i8mm+bf16+fp16fml)
  set(FATHOM_ISAS dotprod i8mm)
  set(FATHOM_OTHER_ISAS avx2 avx512 avx512bf16 amx)
else()
  set(FATHOM_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
  set(FATHOM_ISA_FLAGS_avx512 ${FATHOM_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)
  set(FATHOM_ISA_FLAGS_avx512bf16 ${FATHOM_ISA_FLAGS_avx512} -mavx512bf16)
  set(FATHOM_ISA_FLAGS_amx ${FATHOM_ISA_FLAGS_avx512bf16} -mamx-tile -mamx-bf16)
  set(FATHOM_ISAS avx2 avx512 avx512bf16 amx)
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

# fathom_join(NAME LIST ROOT): replaces the sources of a list by files build/joined/NAME_N.cc that include FATHOM_JOIN bytes of
# them each, in paths below ROOT, so that clones share what the compiler's cache has. A header, and what is instantiated of its templates, is then compiled once for all of them: the whole
# program takes half the time. Names of anonymous namespaces are therefore different in all files of a folder. Files for one
# instruction set stay alone, and so do the scalar kernels, which have the same names.
function(fathom_join name result root)
  if(NOT FATHOM_JOIN)
    return()
  endif()
  list(JOIN FATHOM_ISAS "|" isas)
  set(count 0)
  set(size 0)
  set(text "")
  set(files "")
  foreach(source ${${result}} end)
    if(source STREQUAL end)
      set(size ${FATHOM_JOIN})
    elseif(NOT source MATCHES "\\.cc$" OR source MATCHES "_(scalar|cuda_test|${isas})\\.cc$")
      list(APPEND files ${source})
      continue()
    else()
      file(RELATIVE_PATH path ${root} ${source})
      string(APPEND text "#include \"${path}\"\n")
      file(SIZE ${source} more)
      math(EXPR size "${size} + ${more}")
    endif()
    if(size GREATER_EQUAL FATHOM_JOIN AND text)
      set(file ${CMAKE_BINARY_DIR}/joined/${name}_${count}.cc)
      file(CONFIGURE OUTPUT ${file} @ONLY CONTENT "${text}")
      list(APPEND files ${file})
      math(EXPR count "${count} + 1")
      set(size 0)
      set(text "")
    endif()
  endforeach()
  set(${result} ${files} PARENT_SCOPE)
endfunction()

# fathom_precompile(TARGET GROUP HEADERS...): these and some common headers are compiled once for all targets of a group,
# which have the same flags.
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
  target_precompile_headers(${target} PRIVATE <algorithm> <atomic> <cmath> <functional> <map> <memory> <optional> <span>
                                              <string> <vector> <fmt/format.h> ${ARGN})
endfunction()

# What reads and writes JSON is glue, and `all` of some folders: with -O1 it compiles in three quarters of the time. Moves
# these sources of a folder into an object library and puts its objects into the folder's list instead.
function(fathom_glue name result all)
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
  fathom_join(${name}_glue glue ${PROJECT_SOURCE_DIR}/src)
  add_library(fathom_${name}_glue OBJECT ${glue})
  target_compile_options(fathom_${name}_glue PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(fathom_${name}_glue PRIVATE $<TARGET_PROPERTY:fathom_${name},LINK_LIBRARIES>)
  target_include_directories(fathom_${name}_glue PRIVATE ${PROJECT_SOURCE_DIR}/src)
  fathom_precompile(fathom_${name}_glue glue <nlohmann/json.hpp>)
  set(${result} ${${result}} $<TARGET_OBJECTS:fathom_${name}_glue> PARENT_SCOPE)
endfunction()

function(fathom_fast target)
  if(NOT FATHOM_SANITIZE AND NOT FATHOM_FUZZ)
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O3>)
  endif()
endfunction()

function(fathom_folder name)
  cmake_parse_arguments(arg "FAST;GLUE" "AFTER" "LINK" ${ARGN})
  fathom_sources(${name} sources)
  fathom_glue(${name} sources ${arg_GLUE})
  fathom_join(${name} sources ${PROJECT_SOURCE_DIR}/src)
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
    fathom_precompile(fathom_${name} "library_${arg_FAST}")
  endif()
  set_property(GLOBAL APPEND PROPERTY FATHOM_FOLDERS ${name})

  if(BUILD_TESTING)
    file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*_test.cc ${PROJECT_SOURCE_DIR}/src/${name}/*/*_test.cc)
    if(NOT FATHOM_CUDA)  # these would skip every case
      list(FILTER tests EXCLUDE REGEX "cuda_test\\.cc$")
    endif()
    fathom_join(${name}_test tests ${PROJECT_SOURCE_DIR}/src)
    fathom_test(${name}_test ${name} fathom_${name} SOURCES ${tests})
    file(GLOB fuzzers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*_fuzz.cc)
    foreach(fuzzer ${fuzzers})
      fathom_fuzzer(${fuzzer} fathom_${name})
    endforeach()
  endif()
endfunction()

# fathom_test(TARGET PREFIX LIBRARY [SUITES NAMES...] [LONG FILTER] SOURCES FILES...): one GoogleTest program. Its cases run
# in parts, each a process: ctest's tests PREFIX.0, PREFIX.1, … Starting a process for every case would take longer than
# most cases do. A suite of SUITES is a part by itself, PREFIX.SUITE: its cases share what is slow to prepare. Cases that
# match LONG (patterns as --gtest_filter takes them) are the part PREFIX.long, which has the label `long`: `make test`
# leaves that label out, `make test-long` runs it. Every part writes its cases to test_results/, where
# tools/test_summary.py counts them.
# A file, not -D: clones share what the compiler's cache has of every test that names no path.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/paths/support/test_paths.h @ONLY CONTENT [[
#pragma once
#define FATHOM_SOURCE_DIR "@PROJECT_SOURCE_DIR@"
#define FATHOM_TEST_DATA FATHOM_SOURCE_DIR "/tests/data"
#define FATHOM_BINARY "@CMAKE_BINARY_DIR@/fathom"
]])
function(fathom_test target prefix library)
  cmake_parse_arguments(arg "" "LONG" "SUITES;SOURCES" ${ARGN})
  if(NOT arg_SOURCES)
    return()
  endif()
  add_executable(${target} ${arg_SOURCES} ${PROJECT_SOURCE_DIR}/tests/support/heap_allocations.cc)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${CMAKE_BINARY_DIR}/paths)
  target_link_libraries(${target} PRIVATE ${library} GTest::gtest GTest::gtest_main)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)  # a third less to wait for than -O2
  if(FATHOM_SANITIZE MATCHES undefined)  # the libraries keep these checks; without them a test takes a third less to compile
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
  endif()
  fathom_precompile(${target} tests <gtest/gtest.h>)
  if(NOT TARGET tests)
    add_custom_target(tests)  # all that `make test` runs
  endif()
  add_dependencies(tests ${target})

  set(last 0)
  if(prefix MATCHES "^(ops|skip|infer|train|eval|serve|end_to_end)$")  # the longest
    set(last 7)
  endif()
  if(FATHOM_SANITIZE)  # all cases alike; looking for leaks takes seconds at the end of every process
    set(arg_SUITES "")
    set(arg_LONG "")
    if(NOT prefix MATCHES "^(skip|infer|train|end_to_end)$")
      set(last 0)
    elseif(last)
      set(last 3)
    endif()
  endif()
  math(EXPR shards "${last} + 1")
  list(TRANSFORM arg_SUITES APPEND ".*" OUTPUT_VARIABLE apart)
  string(JOIN ":" apart ${apart} ${arg_LONG})
  foreach(shard RANGE ${last})
    fathom_test_part(${target} ${prefix} ${shard} "-${apart}" GTEST_TOTAL_SHARDS=${shards} GTEST_SHARD_INDEX=${shard})
  endforeach()
  foreach(suite ${arg_SUITES})
    fathom_test_part(${target} ${prefix} ${suite} "${suite}.*")
    set_tests_properties(${prefix}.${suite} PROPERTIES COST 50)
  endforeach()
  if(arg_LONG)
    fathom_test_part(${target} ${prefix} long "${arg_LONG}")
    set_tests_properties(${prefix}.long PROPERTIES LABELS long COST 100)
  endif()
endfunction()

# fathom_test_part(TARGET PREFIX PART FILTER ENVIRONMENT...): ctest's test PREFIX.PART
function(fathom_test_part target prefix part filter)
  set(environment GTEST_BRIEF=1 GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/test_results/${prefix}.${part}.xml ${ARGN})
  if(NOT filter STREQUAL "-")  # none: GTEST_FILTER of the environment counts
    list(APPEND environment GTEST_FILTER=${filter})
  endif()
  if(FATHOM_SANITIZE)
    set(asan ASAN_OPTIONS=allocator_may_return_null=1)
    if(prefix STREQUAL end_to_end)  # runs many programs: leaks are looked for in the folders' own tests
      string(APPEND asan :detect_leaks=0)
    endif()
    list(APPEND environment ${asan})
  endif()
  add_test(NAME ${prefix}.${part} COMMAND ${target})
  set_tests_properties(${prefix}.${part} PROPERTIES ENVIRONMENT "${environment}")
  if(prefix STREQUAL end_to_end AND NOT FATHOM_SANITIZE)
    # The program takes a thread for each core that it may use. Two programs with all cores would wait for each other; with
    # one core each, the small models of these tests take a third less of the processor.
    set_tests_properties(${prefix}.${part} PROPERTIES PROCESSOR_AFFINITY ON)
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
    if(NOT TARGET replay_main)
      add_library(replay_main OBJECT ${PROJECT_SOURCE_DIR}/tests/replay_main.cc)
    endif()
    target_link_libraries(${target} PRIVATE replay_main)
  endif()
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzzers)
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers ${target})
  add_test(NAME fuzz_corpus.${target} COMMAND ${target} -runs=0 ${PROJECT_SOURCE_DIR}/tests/corpus/${target})
  if(NOT FATHOM_SANITIZE)
    set_tests_properties(fuzz_corpus.${target} PROPERTIES LABELS long)
  endif()
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
