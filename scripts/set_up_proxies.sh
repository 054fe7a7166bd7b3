#!/usr/bin/env bash
# Print the folder that holds nginx and haproxy: that of the installed ones, else .venv/proxies, which this fills from
# the Debian packages (3 MB).
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=.venv/proxies

main() {
    if command -v nginx >/dev/null && command -v haproxy >/dev/null; then
        dirname "$(command -v nginx)"
        return
    fi
    if [ ! -x "$FOLDER/bin/haproxy" ]; then extract; fi
    echo "$PWD/$FOLDER/bin"
}

extract() {
    scripts/unpack_debian_packages.sh "$FOLDER" nginx haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1
    mkdir "$FOLDER/bin"
    for name in nginx haproxy; do start "$name" >"$FOLDER/bin/$name"; done
    chmod +x "$FOLDER/bin/"*
}

# A command that finds the libraries beside it.
start() {
    cat <<COMMAND
#!/bin/sh
here="\$(dirname "\$0")/../usr"
LD_LIBRARY_PATH="\$(echo "\$here"/lib/*-linux-gnu)" exec "\$here/sbin/$1" "\$@"
COMMAND
}

main
