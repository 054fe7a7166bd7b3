#!/usr/bin/env bash
# Install an SGLang into build/engine-next, an environment of its own, and see whether Tandem serves on
# it: the demo, also with every unit, and three files of contract tests. Ends with a table of what held and what broke.
#
#   scripts/engine_next.sh [RELEASE]   without one: the newest that the index has
set -euo pipefail
cd "$(dirname "$0")/.."

RELEASE="${1:-newest}"
PLACE=build/engine-next
VENV="$PLACE/venv"
LOCK="$PLACE/constraints.txt"
TESTS=(test_kv_really_crossed test_worker_contract test_prompt_logprobs)
REPORT="$PLACE/report.md"

main() {
    mkdir -p "$PLACE"
    printf '| SGLang | step | |\n| --- | --- | --- |\n' >"$REPORT"
    step "locks" scripts/lock.sh next "$RELEASE" "$LOCK" || finish 1
    RELEASE="$(sed -n 's/^sglang==//p' "$LOCK")"
    step "installs" scripts/set_up.sh full "$VENV" "$LOCK" || finish 1
    local broken=0 name
    step "imports every module" import_all || broken=1
    step "demo, as it is" "$VENV/bin/tandem" demo --engine sglang || broken=1
    step "demo, with every unit" "$VENV/bin/tandem" demo --engine sglang \
        --engine-option strict_units=true || broken=1
    for name in "${TESTS[@]}"; do
        step "$name" "$VENV/bin/python" -m pytest -q -m "sglang and not long" "tests/contract/$name.py" || broken=1
    done
    finish "$broken"
}

import_all() {
    SGLANG_USE_CPU_ENGINE=1 "$VENV/bin/python" -W ignore -c '
import importlib, pkgutil, tandem_sglang
for module in pkgutil.iter_modules(tandem_sglang.__path__, "tandem_sglang."):
    importlib.import_module(module.name)
'
}

step() {
    echo "==> SGLang $RELEASE: $1"
    if "${@:2}"; then
        echo "| $RELEASE | $1 | held |" >>"$REPORT"
    else
        echo "| $RELEASE | $1 | **broke** |" >>"$REPORT"
        return 1
    fi
}

finish() {
    cat "$REPORT"
    if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then cat "$REPORT" >>"$GITHUB_STEP_SUMMARY"; fi
    exit "$1"
}

main
