# The libraries of dependencies.cmake for the `cross` preset, as far as the kernels and their tests need them. None has to be installed
# for the other architecture: these are used as headers alone, GoogleTest is built from the source its package brings.
find_package(Threads REQUIRED)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include)
foreach(library fmt spdlog nlohmann)  # links, because /usr/include itself would bring this machine's C library
  file(CREATE_LINK /usr/include/${library} ${CMAKE_BINARY_DIR}/include/${library} SYMBOLIC)
endforeach()
add_library(headers INTERFACE)
target_include_directories(headers SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/include)
target_compile_definitions(headers INTERFACE FMT_HEADER_ONLY SPDLOG_FMT_EXTERNAL)
foreach(name fmt::fmt spdlog::spdlog nlohmann_json::nlohmann_json)
  add_library(${name} ALIAS headers)
endforeach()

set(googletest /usr/src/googletest/googletest)
add_library(gtest STATIC EXCLUDE_FROM_ALL ${googletest}/src/gtest-all.cc ${googletest}/src/gtest_main.cc)
target_include_directories(gtest SYSTEM PUBLIC ${googletest}/include PRIVATE ${googletest})
target_compile_options(gtest PRIVATE -w)
add_library(GTest::gtest ALIAS gtest)
add_library(GTest::gtest_main ALIAS gtest)
set(FATHOM_CUDA_VERSION none)
