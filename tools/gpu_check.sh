#!/usr/bin/env bash
# gpu_check.sh [BUILD]: builds the CUDA backend in BUILD (build-gpu) and runs the tests that use a GPU. Needs nvcc and the
# libraries of src/base; without PCRE2, utf8proc and libedit the tests of the folders up to ops/ alone.
# FATHOM_CUDA_ARCH: compute capability without the dot (90).
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-gpu}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader ||
  echo "gpu_check: nvidia-smi does not run: the GPU's tests will say that they are skipped" >&2
cmake -S . -B "$build" -G Ninja -DFATHOM_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${FATHOM_CUDA_ARCH:-90}"
tests=(tensor_test ops_test)
if pkg-config --exists libpcre2-8 libutf8proc; then tests+=(model_test); fi
known=$(ninja -C "$build" -t targets all | cut -d: -f1)
failed=()
for test in "${tests[@]}"; do
  grep -qx "$test" <<<"$known" || continue  # a folder without tests
  cmake --build "$build" --target "$test"
  "$build/$test" || failed+=("$test")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "gpu_check: failed: ${failed[*]}" >&2
  exit 1
fi
