#!/usr/bin/env bash
# gpu_check.sh [BUILD [build | test]]: builds with CUDA in BUILD (build-gpu), runs the tests that use a GPU, in parts side
# by side, then what runs on the GPU alone once more under each tool of compute-sanitizer that FATHOM_SANITIZER names
# ('memcheck racecheck'), which must also find a planted fault, and writes docs/gpu_check.json. Needs nvcc; without PCRE2,
# utf8proc and libedit the tests of the folders up to ops/ alone.
#   build  no more than that: needs no GPU
#   test   runs what was built before, from these sources, also in another place: needs no compiler
# FATHOM_CUDA_ARCH: architecture (90a). FATHOM_PART_LIMIT, FATHOM_SANITIZER_LIMIT: seconds for a part (300; 1800 under a
# sanitizer), after which it counts as failed.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-gpu}
stage=${2:-all}
case $stage in all | build | test) ;; *) echo "gpu_check: build or test, not $stage" >&2 && exit 2 ;; esac
for tool in ${FATHOM_SANITIZER:-}; do
  case $tool in memcheck | racecheck) ;; *) echo "gpu_check: memcheck or racecheck, not $tool" >&2 && exit 2 ;; esac
done

if [ "$stage" != test ]; then
  cmake -S . -B "$build" -G Ninja -DFATHOM_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${FATHOM_CUDA_ARCH:-90a}"
  tests=(tensor_test ops_test)
  if pkg-config --exists libpcre2-8 libutf8proc; then tests+=(model_test skip_test infer_test train_test); fi
  tools/gpu_report.py begin "$build" "${tests[@]}"
  cmake --build "$build" --target "${tests[@]}" planted_cuda
  tools/gpu_report.py end "$build"
fi
programs=$(tools/gpu_report.py programs "$build")  # fails where the sources are others than those that were built
[ "$stage" != build ] || exit 0

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader ||
  echo "gpu_check: nvidia-smi does not run: the GPU's tests will say that they are skipped" >&2

run_part() {  # TEST PART PARTS FILTER COMMAND...
  export GTEST_TOTAL_SHARDS=$3 GTEST_SHARD_INDEX=$2
  exec "${@:5}" "$build/$1" --gtest_filter="$4"
}
failed=() logs=()
run_all() {  # NAME FILTER COMMAND...: all parts at once; the GPU waits for the CPU in most tests
  local test part parts filter i pids=() names=()
  for test in $programs; do
    # The op cases and what is named after the GPU; the rest runs on the CPU alone.
    filter=$2 parts=2
    case $test in
      tensor_test) parts=1 ;;
      ops_test)  # its cases are not named after the GPU; OpCase checks the checks, on the CPU
        parts=8 filter='*'
        [ "$1" = gpu ] || filter='*-OpCase.*'
        ;;
      skip_test) parts=3 filter='*Cuda*' ;;
      infer_test | train_test) filter='*Cuda*' ;;
    esac
    for ((part = 0; part < parts; ++part)); do
      run_part "$test" "$part" "$parts" "$filter" "${@:3}" >"$build/$test.$part.$1.log" 2>&1 &
      pids+=($!) names+=("$test.$part.$1")
    done
  done
  for i in "${!pids[@]}"; do
    if ! wait "${pids[i]}"; then
      failed+=("${names[i]}")
      echo "gpu_check: ${names[i]}:" >&2
      grep -vE '^\[ *(RUN|OK|-+) *\]' "$build/${names[i]}.log" | tail -n 200 >&2 || true
    fi
  done
}
rm -f "$build"/*_test.*.gpu.log
run_all gpu '*' timeout "${FATHOM_PART_LIMIT:-300}"
for log in "$build"/*_test.*.gpu.log; do
  name=$(basename "$log")
  logs+=("${name%%.*}=$log")
done
sanitizers=()
run_sanitizer() {  # TOOL
  local command=(timeout "${FATHOM_SANITIZER_LIMIT:-1800}" compute-sanitizer --tool "$1" --error-exitcode 9)
  local before=${#failed[@]} clean=yes found=yes status=0
  [ "$1" != memcheck ] || command+=(--report-api-errors no)  # a test asks for more memory than there is
  FATHOM_CHECK_DEVICES=cuda run_all "$1" '*Cuda*' "${command[@]}"
  [ ${#failed[@]} -eq "$before" ] || clean=no
  "${command[@]}" "$build/tests/planted_cuda" "$1" >"$build/planted_cuda.$1.log" 2>&1 || status=$?
  if [ $status -ne 9 ]; then
    found=no failed+=("planted_cuda.$1")
    echo "gpu_check: $1 ended with $status on a planted fault, not with 9: $build/planted_cuda.$1.log" >&2
  fi
  sanitizers+=("$1:$clean:$found")
}
for tool in ${FATHOM_SANITIZER:-}; do run_sanitizer "$tool"; done
tools/gpu_report.py write "$build" "${sanitizers[@]}" "${logs[@]}"
if [ ${#failed[@]} -gt 0 ]; then
  echo "gpu_check: failed: ${failed[*]}" >&2
  exit 1
fi
