#!/usr/bin/env bash
# first_evidence.sh FATHOM OUT [JOBS]: trains every from-scratch method of docs/results.md with configs/evidence/scratch.json
# (JOBS at a time, a thread each), measures validation loss and savings, and leaves one line of JSON per point in
# OUT/points.jsonl. data/wikipedia-train.txt and data/wikipedia-valid.txt must be there.
set -euo pipefail
fathom=$(realpath "$1") out=$2 jobs=${3:-1}
cd "$(dirname "$0")/.."
mkdir -p "$out"
window=256 tokens=32768

one() {  # NAME SEED BUDGETS OVERRIDES…
  local name=$1 seed=$2 budgets=$3 dir
  shift 3
  dir=$out/$name-$seed
  [ -e "$dir/last" ] || "$fathom" train --config configs/evidence/scratch.json -o "$dir" -t 1 -s "$seed" -q --json "$@" >"$dir.json"
  if [ "$budgets" != - ]; then
    "$fathom" calibrate -m "$dir/last" --data data/wikipedia-valid.txt --budgets "$budgets" -t 1 --window 256 --tokens 32768 --json -q >"$dir.calibration"
  fi
  for budget in 1 $(tr , " " <<<"${budgets#-}"); do
    local point how=(--budget "$budget")
    [ "$budget" != 1 ] || how=()  # by the method's own rule
    point=$(tools/window_nll.py "$fathom" data/wikipedia-test.txt $window $tokens -m "$dir/last" "${how[@]}" -t 1)
    echo "{\"name\": \"$name\", \"seed\": $seed, \"budget\": $budget, \"point\": $point}" >>"$out/points.jsonl"
  done
}
export -f one
export fathom out window tokens

runs() {
  for seed in 1 2 3; do
    echo "dense-8 $seed - --set method=dense"
    echo "random-block $seed - --set method=random --set method.units=block --set method.share_end=0.5 --set method.rows_kept=0.5"
    echo "gate_skip $seed 0.9,0.8,0.7 --set method=gate_skip --set method.share=falling --set method.share_end=0.8"
    echo "skip_layer $seed - --set method=skip_layer --set method.share_end=0.5"
  done
  echo "random-block-75 1 - --set method=random --set method.units=block --set method.share_end=0.75 --set method.rows_kept=0.75"
  for layers in 2 4 6; do echo "dense-$layers 1 - --set method=dense --set model.layers=$layers"; done
  local sandwich="--set model.architecture=skip_middle --set model.norm_placement=sandwich --set model.embedding_norm=true --set model.tied=false"
  echo "skip_middle 1 - --set method=skip_middle --set method.final_target=0.5 $sandwich"
  for layers in 6 8; do echo "dense-$layers-sandwich 1 - --set method=dense --set model.layers=$layers $sandwich"; done
  echo "mixture_of_depths 1 - --set method=mixture_of_depths --set method.share=falling --set method.share_end=0.7"
  echo "calm 1 - --set method=calm --set method.threshold=0.6"
  echo "free 1 - --set method=free --set method.threshold=0.6 --set method.state_weight=0.01"
  echo "layer_skip 1 - --set method=layer_skip --set method.dropout=0.2 --set method.exit_layer=6"
  echo "wide_ffn 1 - --set method=wide_ffn --set method.share_end=0.5 --set model.ffn_width=352"
  echo "highway 1 - --set method=highway"
}
runs | xargs -P "$jobs" -I{} bash -c 'one {} || echo "failed: {}" >&2'
