#!/usr/bin/env bash
# Resolve every name in pyproject.toml and write the exact versions to constraints.txt.
# Run it through `make lock`, which has uv installed first; add `--upgrade` to move to the newest versions.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/uv_environment.sh

.venv/bin/uv pip compile --quiet "$@" \
    --python-version 3.11 --no-annotate --custom-compile-command "make lock" \
    --extra frontend --extra router --extra worker --extra tracing --extra hub --extra sglang --extra dev \
    --override requirements/overrides-full.txt \
    pyproject.toml --output-file constraints.txt
echo "constraints.txt: $(grep -c == constraints.txt) packages"
