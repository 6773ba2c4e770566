// Two faults on purpose, which compute-sanitizer must find before its silence says anything
// (tools/gpu_check.sh):
//   planted_cuda memcheck    a write beyond the end of its memory
//   planted_cuda racecheck   a read of what another warp writes, with no barrier between them
// Without the tool both end well.
#include <cstdio>
#include <string_view>

namespace {

constexpr int kThreads = 64;  // two warps

__global__ void write_beyond(int* numbers, int count) {
  const int i = static_cast<int>(threadIdx.x);
  if (i <= count) numbers[i] = i;
}

__global__ void read_without_barrier(int* numbers) {
  __shared__ int shared[kThreads];
  const int i = static_cast<int>(threadIdx.x);
  shared[i] = i;
  numbers[i] = shared[kThreads - 1 - i];
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view tool = argc == 2 ? argv[1] : "";
  if (tool != "memcheck" && tool != "racecheck") {
    std::fprintf(stderr, "planted_cuda: expected memcheck or racecheck\n");
    return 2;
  }
  int* numbers = nullptr;
  if (cudaMalloc(&numbers, kThreads * sizeof(int)) != cudaSuccess) {
    std::fprintf(stderr, "planted_cuda: no GPU\n");
    return 3;
  }
  if (tool == "memcheck") {
    write_beyond<<<1, 2 * kThreads>>>(numbers, kThreads);
  } else {
    read_without_barrier<<<1, kThreads>>>(numbers);
  }
  cudaDeviceSynchronize();
  return 0;
}
