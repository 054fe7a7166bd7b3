#!/usr/bin/env bash
# Fill build/mooncake with Mooncake's transfer engine (46 MB to download), and build/libibverbs with the system's
# library that it loads, where the machine has none. Nothing is installed; tests/contract/test_mooncake.py then runs.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/unpack_wheels.sh mooncake
if ! ldconfig -p | grep -q 'libibverbs\.so\.1 ' && [ ! -d build/libibverbs ]; then
    scripts/unpack_debian_packages.sh build/libibverbs libibverbs1 libnl-3-200 libnl-route-3-200
fi
