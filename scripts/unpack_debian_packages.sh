#!/usr/bin/env bash
# unpack_debian_packages.sh FOLDER PACKAGE...: fill FOLDER with the files of Debian's packages, without root and without
# installing them. What they depend on must be named too, where the machine may lack it.
set -euo pipefail

main() {
    FOLDER=$1
    shift
    command -v apt-get >/dev/null || fail "there is no apt-get here: install ${*}"
    WORK="$(mktemp -d)"
    trap 'rm -rf "$WORK"' EXIT
    download "$@" || fail "apt-get found not all of: $*; run apt-get update, or install them"
    for package in "$WORK"/*.deb; do dpkg -x "$package" "$WORK/files"; done
    rm -rf "$FOLDER" && mkdir -p "$(dirname "$FOLDER")" && mv "$WORK/files" "$FOLDER"
}

# Where the lists are missing, as in a fresh container, they are fetched first; that needs root.
download() {
    (cd "$WORK" && apt-get download "$@" >&2) ||
        { [ "$(id -u)" = 0 ] && apt-get update >&2 && (cd "$WORK" && apt-get download "$@" >&2); }
}

fail() {
    echo "set-up: $*" >&2
    exit 1
}

main "$@"
