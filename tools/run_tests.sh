#!/usr/bin/env bash
# run_tests.sh BUILD [CTEST OPTIONS…]: runs ctest with what the larger tests look for in the environment:
#   FATHOM_TOKENIZER_DATA  the tokenizers of tokenizers.tar.xz, looked for in FATHOM_SHARED_DATA or a folder shared/data
#   FATHOM_SMOLLM2         SmolLM2-135M-Instruct, fetched; FATHOM_SMOLLM2=none leaves its tests out
# Tests that miss theirs say that they are skipped. The last line counts the cases of all programs (test_summary.py).
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift

unpack() {  # ARCHIVE FOLDER: once, whole or not at all
  [ ! "$2" -nt "$1" ] || return 0
  local work
  mkdir -p .cache
  work=$(mktemp -d .cache/unpack.XXXXXX)
  tar -xJf "$1" -C "$work" && rm -rf "$2" && mv "$work" "$2" && touch "$2"
}

if [ -z "${FATHOM_TOKENIZER_DATA:-}" ]; then
  for folder in "${FATHOM_SHARED_DATA:-}" ../shared/data shared/data; do
    archive=$folder/tokenizers.tar.xz
    if [ -f "$archive" ]; then
      unpack "$archive" .cache/data
      export FATHOM_TOKENIZER_DATA=$PWD/.cache/data/tokenizers
      break
    fi
  done
fi
case ${FATHOM_SMOLLM2:-} in
  none) unset FATHOM_SMOLLM2 ;;
  '') if model=$(tools/fetch_smollm2.sh); then export FATHOM_SMOLLM2=$model; fi ;;
esac

rm -rf "$build/test_results"
mkdir -p "$build/test_results"
status=0
ctest --test-dir "$build" --output-on-failure -j "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" \
  --output-junit test_results/ctest.xml "$@" || status=$?
tools/test_summary.py "$build" || status=1
exit "$status"
