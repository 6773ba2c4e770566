#!/usr/bin/env bash
# Real clients, unchanged, against build/fathom serve: the package openai, lm-evaluation-harness, curl as docs/serving.md has
# it, and a soak of SOAK_REQUESTS (500) mixed requests. Their packages go to .cache/clients, in the versions of
# tools/clients_requirements.txt. Nothing is skipped: what cannot be installed fails.
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
CLIENTS_MODEL=${CLIENTS_MODEL:-$(tools/fetch_smollm2.sh || echo builtin)}
export CLIENTS_MODEL
echo "clients: model $CLIENTS_MODEL"
failed=0
run() {  # COMMAND…: goes on after a failure
  local start=$SECONDS name
  name=$(basename "$2")
  if "$@"; then echo "clients: $name: ok in $((SECONDS - start)) s"; else failed=1; echo "clients: $name: FAILED"; fi
}
for test in tests/clients/test_*.py; do run "$venv/bin/python" "$test"; done
run python3 tests/soak.py --requests "${SOAK_REQUESTS:-500}"
exit $failed
