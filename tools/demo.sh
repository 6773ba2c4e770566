#!/usr/bin/env bash
# The show: one model at full depth, at calibrated savings, and with lossless self-speculation, side by side. Leaves
# runs/demo/index.html. Options go to tools/demo.py.
set -euo pipefail
cd "$(dirname "$0")/.."

model=$(tools/fetch_smollm2.sh) || model=builtin
if command -v python3 >/dev/null || tools/install_packages.sh demo; then
  exec tools/demo.py --out runs/demo "$@" "$model"
fi

echo "Without python3 there is no table and no page; the model itself needs none:" >&2
if [ "$model" = builtin ]; then
  exec build/fathom generate -m builtin --budget 0.8 -p "The old man looked at the sea and" -n 60 --show-depth
fi
exec build/fathom generate -m "$model" --adapter models/smollm2-135m --budget 0.9 -p "The capital of France is" \
  -n 48 --temp 0 --show-depth
