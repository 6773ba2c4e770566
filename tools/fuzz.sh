#!/usr/bin/env bash
# fuzz.sh BUILD SECONDS JOBS: runs every fuzz target that long. New inputs go to BUILD/corpus, a crash to BUILD/<target>-*.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 seconds=$2 jobs=$3

fuzz_one() {  # PROGRAM
  local target
  target=$(basename "$1")
  mkdir -p "$build/corpus/$target"
  if "$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$build/$target-" \
    "$build/corpus/$target" "tests/corpus/$target" >"$build/$target.log" 2>&1; then
    echo "$target: $(tail -n 1 "$build/$target.log")"
  else
    echo "$target: FAILED, see $build/$target.log"
    tail -n 40 "$build/$target.log"
    return 1
  fi
}
export -f fuzz_one
export build seconds

programs=("$build"/fuzzers/*_fuzz)
[ -x "${programs[0]}" ] || { echo "no fuzz targets in $build" >&2; exit 1; }
printf '%s\0' "${programs[@]}" | xargs -0 -P "$jobs" -I{} bash -c 'fuzz_one {}'
echo "${#programs[@]} targets, $seconds s each: nothing found"
