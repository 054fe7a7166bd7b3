#!/usr/bin/env bash
# Print the folder that holds prometheus and promtool: that of the installed ones, else .venv/prometheus, which this
# fills from the Debian package (19 MB), without root and without installing it.
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=.venv/prometheus

main() {
    if command -v promtool >/dev/null && command -v prometheus >/dev/null; then
        dirname "$(command -v promtool)"
        return
    fi
    if [ ! -x "$FOLDER/usr/bin/promtool" ]; then extract; fi
    echo "$PWD/$FOLDER/usr/bin"
}

extract() {
    command -v apt-get >/dev/null || fail "install Prometheus: promtool and prometheus must be in PATH"
    WORK="$(mktemp -d)"
    trap 'rm -rf "$WORK"' EXIT
    download "$WORK" || fail "apt-get found no package 'prometheus'; run apt-get update, or install Prometheus"
    dpkg -x "$WORK"/prometheus_*.deb "$WORK/files"
    rm -rf "$FOLDER" && mkdir -p "$(dirname "$FOLDER")" && mv "$WORK/files" "$FOLDER"
}

# Where the lists are missing, as in a fresh container, they are fetched first; that needs root.
download() {
    (cd "$1" && apt-get download prometheus >&2) ||
        { [ "$(id -u)" = 0 ] && apt-get update >&2 && (cd "$1" && apt-get download prometheus >&2); }
}

fail() {
    echo "set-up: $*" >&2
    exit 1
}

main
