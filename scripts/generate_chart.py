"""Write what follows from helm/tandem: its schema, the tables of its README, and deploy/.

python scripts/generate_chart.py
python scripts/generate_chart.py --check     # exit 1 when a file is stale
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chart_renders
import chart_values
import yaml
from chart_renders import CHART, NAMESPACE, ROOT
from chart_values import Value

DEPLOY = ROOT / "deploy"
_MARKS = ("<!-- values: written by `make chart` -->\n", "<!-- end of values -->\n")
_COMPONENTS = ("tls", "router", "prefill", "decode", "frontend")
_HELM_LABELS = re.compile(r"^ *helm\.sh/chart: .*\n", re.MULTILINE)
_GENERATED = "# Written by `make chart` from helm/tandem with its default values: change those.\n"


def outputs() -> Iterator[tuple[Path, str]]:
    """Every generated file with what it must hold. The schema comes first: to render, it must be
    in its place.
    """
    values = list(chart_values.read(CHART / "values.yaml"))
    schema = json.dumps(chart_values.json_schema(values), indent=2, ensure_ascii=False)
    yield CHART / "values.schema.json", schema + "\n"
    page = CHART / "README.md"
    yield page, readme(page.read_text(encoding="utf-8"), values)
    yield from ((DEPLOY / name, text) for name, text in deploy())


def readme(text: str, values: list[Value]) -> str:
    """`text` with the tables of `values` between its marks."""
    before, _, rest = text.partition(_MARKS[0])
    _, _, after = rest.partition(_MARKS[1])
    return before + _MARKS[0] + "".join(_tables(values)) + _MARKS[1] + after


def _tables(values: list[Value]) -> Iterator[str]:
    """A table for the values at the top, then one for each section at the top."""
    head = "| value | default | effect |\n| --- | --- | --- |\n"
    yield "\n" + head
    yield from (_row(value) for value in values if len(value.path) == 1 and not value.section)
    for section in (value.path[0] for value in values if len(value.path) == 1 and value.section):
        yield f"\n### {section}\n\n{head}"
        yield from (_row(each) for each in values if each.path[0] == section and not each.section)
    yield "\n"


def _row(value: Value) -> str:
    default = json.dumps(value.default, ensure_ascii=False)
    return f"| `{'.'.join(value.path)}` | `{_cell(default)}` | {_cell(value.description)} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def deploy() -> Iterator[tuple[str, str]]:
    """The chart's default render as plain manifests, a file for each component, for kubectl."""
    rendered = chart_renders.texts({})
    for component in _COMPONENTS:
        parts = [
            _plain(text)
            for path, text in sorted(rendered.items())
            if path.startswith(f"tandem/templates/{component}-") and text.strip()
        ]
        yield f"{component}.yaml", _GENERATED + "---\n" + "---\n".join(parts)
    yield "namespace.yaml", _GENERATED + yaml.safe_dump(_namespace(), sort_keys=False)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAMESPACE,
        "resources": ["namespace.yaml", *(f"{component}.yaml" for component in _COMPONENTS)],
    }
    yield "kustomization.yaml", _GENERATED + yaml.safe_dump(kustomization, sort_keys=False)


def _plain(manifest: str) -> str:
    """Without what only Helm's own objects have."""
    text = _HELM_LABELS.sub("", manifest.strip() + "\n")
    return text.replace("kubernetes.io/managed-by: Helm", "kubernetes.io/managed-by: kubectl")


def _namespace() -> dict[str, Any]:
    modes = ("enforce", "audit", "warn")
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in modes}
    metadata = {"name": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    options = parser.parse_args()
    stale: list[str] = []
    for path, text in outputs():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path.relative_to(ROOT)))
            if options.check:
                break
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if options.check and stale:
        sys.stderr.write(f"{stale[0]} is stale: run make chart\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
