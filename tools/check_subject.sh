#!/usr/bin/env bash
# Check the subject of a commit message: tools/check_subject.sh FILE. At most 72 characters, then an empty line.
set -euo pipefail
export LC_ALL=C.UTF-8  # characters are counted, not bytes
message=$(grep --invert-match '^#' "$1" || true)
subject=${message%%$'\n'*}
if ((${#subject} > 72)); then
  echo "The subject has ${#subject} characters, at most 72 are shown everywhere: a verb and its object; why in the body." >&2
  exit 1
fi
second=$(sed -n 2p <<<"$message")
if [[ -n $second ]]; then
  echo "The second line of a commit message is empty; why goes below it." >&2
  exit 1
fi
