#!/usr/bin/env bash
# gpu_bench.sh [BUILD]: what docs/benchmarks.md says of training on a GPU, in one run: builds (BUILD, build-gpu), checks against
# the CPU (tools/gpu_check.sh), then times training steps in turns with PyTorch, where python3 has it, and prints the tables.
# SHAPES: which (smollm2-64k llama-1b). REPEATS: of each (5). FATHOM_GPU_CHECK=no leaves the checks out.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-gpu}

[ "${FATHOM_GPU_CHECK:-yes}" = no ] || tools/gpu_check.sh "$build"
[ -f "$build/build.ninja" ] ||
  cmake -S . -B "$build" -G Ninja -DFATHOM_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${FATHOM_CUDA_ARCH:-90a}"
cmake --build "$build" --target fathom
peer=()
if python3 -c 'import torch, transformers' 2>/dev/null; then
  peer=(--peer "torch=python3 bench/torch_training.py")
else
  echo "gpu_bench: python3 has no torch and transformers: no ratios" >&2
fi
for shape in ${SHAPES:-smollm2-64k llama-1b}; do
  "$build/fathom" bench --train --shape "$shape" --device cuda -r "${REPEATS:-5}" "${peer[@]}"
done
