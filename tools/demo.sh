#!/usr/bin/env bash
# What the engine does, in a minute: continues a prompt, answers a question, says how fast.
set -euo pipefail
cd "$(dirname "$0")/.."

show() { printf '\n\033[1m$ fathom %s\033[0m\n' "$(printf '%q ' "$@")"; build/fathom "$@"; }

if model=$(tools/fetch_smollm2.sh); then
  model=${model#"$PWD"/}
  show generate -m "$model" -p 'The capital of France is' -n 24 --temp 0
  show generate -m "$model" -p 'Why is the sky blue? Answer in one sentence.' -n 64 --temp 0 --chat-template auto
  echo; echo "The same model with the routers that ship, at nine tenths of its blocks' work:"
  show generate -m "$model" --adapter models/smollm2-135m-priced --budget 0.9 -p 'The capital of France is' -n 24 --temp 0 --show-depth
  echo; echo "Drafted with fewer layers, verified with all of them: the full model's own text, word for word."
  show generate -m "$model" --adapter models/smollm2-135m-priced --speculate auto --draft-budget 0.8 -p 'The capital of France is' -n 24 --temp 0
else
  echo "Without a network: the model that ships, 260 thousand parameters, trained on children's stories." >&2
  model=builtin
  show generate -m "$model" -p 'Once upon a time' -n 200 --temp 0
  show generate -m "$model" -p 'One day, a dog' -n 100 -s 1
fi
show bench -m "$model" -p 128 -n 64 -r 3
