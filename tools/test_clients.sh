#!/usr/bin/env bash
# Real clients, unchanged, against build/fathom serve: the package openai, lm-evaluation-harness, curl as docs/serving.md has
# it, and a soak of SOAK_REQUESTS (500) mixed requests. Their packages go to .cache/clients, in the versions of
# tools/clients_requirements.txt. Nothing is skipped: what cannot be installed fails, with CI=true a model that cannot be
# fetched, too, and so does what takes more than twice its time: 60 s, lm-evaluation-harness 240 s.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$PWD/.cache/clients pins=tools/clients_requirements.txt
pinned=$(python3 --version; sha256sum <$pins)
if [ "$(cat "$venv/pinned" 2>/dev/null)" != "$pinned" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  for wait in 10 30 0; do  # a package index may be busy
    "$venv/bin/pip" --disable-pip-version-check install --quiet --no-deps --no-compile --retries 3 -r $pins && break
    [ $wait -gt 0 ] || exit 1
    sleep $wait
  done
  echo "$pinned" >"$venv/pinned"
fi
echo "clients: packages after $SECONDS s"

export FATHOM=${FATHOM:-$PWD/build/fathom} PYTHONPATH=tests/clients
if [ -z "${CLIENTS_MODEL:-}" ] && ! CLIENTS_MODEL=$(tools/fetch_smollm2.sh); then
  if [ "${CI:-}" = true ]; then
    echo "clients: FAILED: without SmolLM2 the clients are not tested as in use; CLIENTS_MODEL=builtin takes the small model"
    exit 1
  fi
  CLIENTS_MODEL=builtin
  echo "clients: WARNING: SmolLM2 is not here: the clients meet the small model instead, which proves less" >&2
fi
export CLIENTS_MODEL
echo "clients: model $CLIENTS_MODEL"
failed=0
run() {  # SECONDS COMMAND…: goes on after a failure, of which taking more than twice as long is one
  local most=$((2 * $1)) start=$SECONDS name status=0
  name=$(basename "$3")
  shift
  timeout --kill-after 10 $most "$@" || status=$?
  local took=$((SECONDS - start))
  case $status in
    0) echo "clients: $name: ok in $took s" ;;
    124 | 137) failed=1; echo "clients: $name: FAILED: not done after $most s" ;;
    *) failed=1; echo "clients: $name: FAILED after $took s" ;;
  esac
}
declare -A seconds=([test_lm_eval.py]=240)
for test in tests/clients/test_*.py; do run "${seconds[$(basename "$test")]:-60}" "$venv/bin/python" "$test"; done
requests=${SOAK_REQUESTS:-500}
run $((120 + requests / 2)) python3 tests/soak.py --requests "$requests"
exit $failed
