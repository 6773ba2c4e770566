#!/usr/bin/env bash
# gpu_check.sh [BUILD]: builds with CUDA in BUILD (build-gpu), runs the tests that use a GPU, each of them also under
# compute-sanitizer where FATHOM_SANITIZER names a tool of it (memcheck, racecheck), and writes docs/gpu_check.json. Needs
# nvcc; without PCRE2, utf8proc and libedit the tests of the folders up to ops/ alone.
# FATHOM_CUDA_ARCH: architecture (90a).
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-gpu}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader ||
  echo "gpu_check: nvidia-smi does not run: the GPU's tests will say that they are skipped" >&2
cmake -S . -B "$build" -G Ninja -DFATHOM_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${FATHOM_CUDA_ARCH:-90a}"
tests=(tensor_test ops_test)
if pkg-config --exists libpcre2-8 libutf8proc; then tests+=(model_test skip_test train_test); fi
cmake --build "$build" --target "${tests[@]}"
failed=() logs=()
for test in "${tests[@]}"; do
  log=$build/$test.gpu.log
  # The op cases and what is named after the GPU; the rest runs on the CPU alone.
  case $test in skip_test | train_test) filter='*Cuda*' ;; *) filter='*' ;; esac
  "$build/$test" --gtest_brief=1 --gtest_filter="$filter" | tee "$log" || failed+=("$test")
  logs+=("$test=$log")
  if [ -n "${FATHOM_SANITIZER:-}" ]; then
    compute-sanitizer --tool "$FATHOM_SANITIZER" --error-exitcode 9 "$build/$test" --gtest_brief=1 \
      --gtest_filter='*Cuda*' || failed+=("$test under $FATHOM_SANITIZER")
  fi
done
tools/gpu_report.py write "${logs[@]}"
if [ ${#failed[@]} -gt 0 ]; then
  echo "gpu_check: failed: ${failed[*]}" >&2
  exit 1
fi
