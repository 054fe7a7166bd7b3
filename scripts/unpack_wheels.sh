#!/usr/bin/env bash
# Print the folder of what a list of scripts/requirements/ holds, build/LIST, which this fills from its wheels; nothing of it is
# installed.
#
#   scripts/unpack_wheels.sh LIST
set -euo pipefail
cd "$(dirname "$0")/.."

LIST="${1:?list: one of scripts/requirements/ that has hashes}"
FOLDER="build/$LIST"

# They come whole or not at all.
if [ ! -d "$FOLDER" ]; then
    mkdir -p build
    new="$(mktemp -d "build/$LIST.XXXX")"
    # shellcheck source=scripts/uv_environment.sh
    . scripts/uv_environment.sh
    .venv/bin/uv pip install --quiet --no-deps --require-hashes --python .venv/bin/python --target "$new" \
        -r "scripts/requirements/$LIST.txt" >&2 || { rm -rf "$new" && exit 1; }
    mv -T "$new" "$FOLDER" 2>/dev/null || rm -rf "$new" # another one was first
fi
echo "$PWD/$FOLDER"
