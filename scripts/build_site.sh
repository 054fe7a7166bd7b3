#!/usr/bin/env bash
# Build the documentation's site: `make site`. Its generator has an environment of its own, build/site/venv, with the
# versions and hashes of scripts/requirements/site.txt: nothing else here needs it.
set -euo pipefail
cd "$(dirname "$0")/.."

LOCK=scripts/requirements/site.txt
VENV=build/site/venv

if ! cmp --silent "$LOCK" "$VENV/installed"; then
    rm -rf "$VENV"
    for python in ${PYTHON:-python3.11 python3}; do
        "$python" -m venv "$VENV" && break
    done
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --requirement "$LOCK"
    cp "$LOCK" "$VENV/installed"
fi
PYTHONPATH=scripts exec "$VENV/bin/python" -m docs_site "$@"
