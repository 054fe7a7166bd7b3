#!/usr/bin/env bash
# Print the folder that holds prometheus and promtool: that of the installed ones, else .venv/prometheus, which this
# fills from the Debian package (19 MB).
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=.venv/prometheus

if command -v promtool >/dev/null && command -v prometheus >/dev/null; then
    dirname "$(command -v promtool)"
else
    [ -x "$FOLDER/usr/bin/promtool" ] || scripts/unpack_debian_packages.sh "$FOLDER" prometheus
    echo "$PWD/$FOLDER/usr/bin"
fi
