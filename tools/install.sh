#!/usr/bin/env bash
# Install packages into VENV (.venv), held to CONSTRAINTS (constraints.txt): tools/install.sh "WHAT FOR" PIP-ARGUMENT...
# Says every few seconds how far pip is; what pip itself says is in VENV/install.log, and shown if it fails.
set -euo pipefail
purpose=$1
shift
venv=${VENV:-.venv}
log=$venv/install.log
: >"$log"
echo "Installing $purpose"

# Python compiles a module when it first imports it. Compiling all 13,000 here would take longer than fetching them.
"$venv/bin/python" -m pip install --no-compile --disable-pip-version-check --progress-bar off \
  --constraint "${CONSTRAINTS:-constraints.txt}" "$@" >"$log" 2>&1 &
pip=$!
trap 'kill "$pip" 2>/dev/null || true' INT TERM EXIT

began=$SECONDS
while sleep 1 && kill -0 "$pip" 2>/dev/null; do
  spent=$((SECONDS - began))
  ((spent % 5 == 0)) || continue
  packages=$(grep --count '^Collecting ' "$log" || true)
  latest=$(sed -n 's/^Collecting \([A-Za-z0-9._-]*[A-Za-z0-9]\).*/\1/p' "$log" | tail -n 1)
  if grep --quiet '^Installing collected packages' "$log"; then
    state="unpacking"
  elif ((packages == 0)); then
    state="looking for packages"
  else
    state="$packages packages fetched, now $latest"
  fi
  printf '  %3d s: %s\n' "$spent" "$state"
done
trap - INT TERM EXIT
if ! wait "$pip"; then
  tail -n 30 "$log" >&2
  echo "pip failed; all that it said is in $log" >&2
  exit 1
fi
printf '  done in %d s\n' "$((SECONDS - began))"
