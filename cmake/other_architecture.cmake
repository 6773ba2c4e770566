# Toolchain: x86-64 on an aarch64 machine, aarch64 on any other; programs run in qemu's user mode, with the C and C++
# libraries that Debian's cross compiler brings.
set(CMAKE_SYSTEM_NAME Linux)
if(CMAKE_HOST_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(CMAKE_SYSTEM_PROCESSOR x86_64)
else()
  set(CMAKE_SYSTEM_PROCESSOR aarch64)
endif()
set(CMAKE_CXX_COMPILER ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-${CMAKE_SYSTEM_PROCESSOR} -cpu max -L /usr/${CMAKE_SYSTEM_PROCESSOR}-linux-gnu)
