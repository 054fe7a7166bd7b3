#!/usr/bin/env bash
# Print the command that starts Chromium: the installed one, else build/chromium/run, which this makes of the Debian
# package and of what it needs that the machine lacks (212 MB to download on a bare Debian 12).
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=build/chromium

main() {
    if command -v chromium; then return; fi
    if [ ! -x "$FOLDER/run" ]; then extract; fi
    echo "$PWD/$FOLDER/run"
}

extract() {
    local lacking libraries
    lacking="$(packages || { [ "$(id -u)" = 0 ] && apt-get update >&2 && packages; })"
    # shellcheck disable=SC2086 # one word a package
    scripts/unpack_debian_packages.sh "$FOLDER" $lacking
    libraries="$(cd "$FOLDER" && find usr/lib -name 'lib*.so*' -printf '$here/%h\n' | sort -u | paste -sd:)"
    start "$libraries" >"$FOLDER/run"
    chmod +x "$FOLDER/run"
}

# Where the lists are missing, as in a fresh container, apt-get knows no chromium.
packages() {
    apt-get install --simulate --no-install-recommends chromium fonts-dejavu-core fonts-inter | awk '/^Inst/ {print $2}'
}

# A command that finds the libraries and fonts beside it.
start() {
    cat <<COMMAND
#!/bin/sh
here="\$(cd "\$(dirname "\$0")" && pwd)"
[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_FILE="\$here/etc/fonts/fonts.conf"
export XDG_DATA_HOME="\$here/usr/share" LD_LIBRARY_PATH="$1"
exec "\$here/usr/lib/chromium/chromium" "\$@"
COMMAND
}

main
