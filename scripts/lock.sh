#!/usr/bin/env bash
# Resolve every name in pyproject.toml and write the exact versions to constraints.txt, and what of them the images
# install, with hashes, to docker/; what builds the site, to scripts/requirements/site.txt.
# Run it through `make lock`, which has uv installed first; add `--upgrade` to move to the newest versions.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/uv_environment.sh

# Of what lies in this repository no version is written.
mapfile -t OURS < <(sed -n 's/^name = "\(tandem-.*\)"$/--no-emit-package=\1/p' pyproject.toml kits/*/pyproject.toml)

compile() { .venv/bin/uv pip compile --quiet --no-annotate --custom-compile-command "make lock" "${OURS[@]}" "$@"; }
for_image() { compile --generate-hashes --constraint constraints.txt --output-file "docker/requirements-$1.txt" "${@:2}"; }

compile "$@" --python-version 3.11 --extra stack --extra sglang --extra dev \
    --override scripts/requirements/overrides-full.txt pyproject.toml --output-file constraints.txt
echo "constraints.txt: $(grep -c == constraints.txt) packages"

for_image tandem --python-version 3.11 --override scripts/requirements/overrides-lean.txt --extra stack pyproject.toml
# Beside what SGLang's image brings: docs/images.md.
for_image sglang --python-version 3.12 --extra tracing pyproject.toml - <<<$'dill\ngoogle-re2'
for_image build --python-version 3.11 - <<<hatchling
# The generator of the documentation's site, in an environment of its own.
.venv/bin/uv pip compile --quiet --no-annotate --custom-compile-command "make lock" --python-version 3.11 \
    --generate-hashes --output-file scripts/requirements/site.txt "$@" - <<<$'furo\ngriffelib\nmyst-parser\npystemmer\npyyaml\nsphinx'
