#!/usr/bin/env bash
# gpu_evidence.sh DATA OUT [SECONDS]: what docs/results.md still wants from a GPU, side by side on one: the model that ships,
# trained again, and the tables that are named in PAPERS. After SECONDS everything ends; started again with the same OUT it goes on.
#
#   OUT/builtin.gguf, OUT/builtin.skip   the model; `fathom calibrate` is the next step
#   OUT/PAPER/steps                      what every command of a table printed: tools/results.py PAPER --out OUT/PAPER --tables
#   OUT/PAPER/models, OUT/tokens, OUT/log
#
# DATA: the texts that docs/results.md names, and benchmarks/. From the environment: FATHOM (build/fathom), BASE (SmolLM2, where a
# paper needs it), DEVICE (cuda), PAPERS ("shipped skipmiddle-gpu skiplayer-gpu"), JOBS of each paper (2), STEPS and BATCH of the
# model (15300 and 64: 501 million tokens), SMOKE=1: tiny models and texts, on any DEVICE. Needs numpy and safetensors
# (tools/requirements.txt).
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ -z "${3:-}" ] || exec timeout "$3" "$0" "$1" "$2"  # it ends all that it started
data=$(realpath "$1")
mkdir -p "$2" && out=$(realpath "$2")
cd "$(dirname "$0")/.."
fathom=$(realpath "${FATHOM:-build/fathom}") device=${DEVICE:-cuda}
read -ra papers <<<"${PAPERS-shipped skipmiddle-gpu skiplayer-gpu}"
base=() smoke=()
[ -z "${BASE:-}" ] || base=(--base "$(realpath "$BASE")")
[ -z "${SMOKE:-}" ] || smoke=(--smoke)
mkdir -p "$out/tokens" "$out/log"
for kind in wikipedia novels wikinews; do
  [ -n "${SMOKE:-}" ] || [ -s "$data/$kind-train.txt" ] || { echo "gpu_evidence: there is no $data/$kind-train.txt: docs/results.md says where the texts come from" >&2; exit 1; }
done

# Small models leave most of a GPU idle: with its server their processes share it.
if [ "$device" = cuda ] && command -v nvidia-cuda-mps-control >/dev/null; then nvidia-cuda-mps-control -d 2>/dev/null || true; fi

builtin() {
  [ ! -e "$out/builtin.gguf" ] || return 0
  local texts=(--data "$data/wikipedia-train.txt:0.5" --data "$data/novels-train.txt:0.3" --data "$data/wikinews-train.txt:0.2")
  local set=(--set batch="${BATCH:-64}" --set schedule_steps="${STEPS:-15300}" --set checkpoint.every=3000 --set 'validation.data=[]' --set log_every=50)
  [ -z "${SMOKE:-}" ] || { texts=(--data configs/small/secret_garden.txt) && set+=(--set batch=2 --set context=64 --set schedule_steps=2 --set model.width=64); }
  [ ! -e "$out/model/last" ] || set+=(--resume)
  "$fathom" train --config configs/evidence/builtin.json -o "$out/model" "${texts[@]}" --set data_cache="$out/tokens" \
    "${set[@]}" --device "$device" -t "$(nproc)" -q --json
  rm -rf "$out/folded" && mkdir "$out/folded"
  python3 tools/fold_embedding_norm.py "$out/model/last" "$out/folded/builtin" "$([ -n "${SMOKE:-}" ] && echo 64 || echo 512)"
  "$fathom" quantize -m "$out/folded/builtin" -o "$out/builtin.gguf" --type q8_0 -q
}

paper() {  # NAME
  mkdir -p "$out/$1"
  ln -sfn "$out/tokens" "$out/$1/tokens"
  CUDA_MPS_CLIENT_PRIORITY=1 tools/results.py "$1" --out "$out/$1" --data "$data" --fathom "$fathom" --device "$device" \
    --jobs "${JOBS:-2}" --untimed "${base[@]}" "${smoke[@]}"
}

declare -A names=()
builtin >"$out/log/builtin" 2>&1 & names[$!]=builtin
for name in "${papers[@]}"; do
  paper "$name" >"$out/log/$name" 2>&1 & names[$!]=$name
done
failed=0
for pid in "${!names[@]}"; do
  if wait "$pid"; then echo "${names[$pid]}: done"; else failed=1 && echo "${names[$pid]}: failed, see $out/log/${names[$pid]}" >&2; fi
done
exit $failed
