"""helm/tandem as Helm itself renders it with each set of values in ci/ and examples/."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "helm" / "tandem"
RELEASE = "tandem"
NAMESPACE = "tandem"
Manifest = dict[str, Any]
EXAMPLES = tuple(sorted(path.stem for path in (CHART / "examples").glob("*.yaml")))
"""Those of docs/recipes/."""
_PATHS = {
    **{path.name.removesuffix("-values.yaml"): path for path in (CHART / "ci").iterdir()},
    **{name: CHART / "examples" / f"{name}.yaml" for name in EXAMPLES},
}
SETS = tuple(sorted(_PATHS))


@cache
def chart() -> Chart:
    return Chart.load(CHART)


@cache
def values(name: str) -> Mapping[str, Any]:
    content: Mapping[str, Any] = _load(_PATHS[name].read_text(encoding="utf-8"))[0]
    return content


def texts(given: Mapping[str, Any]) -> Mapping[str, str]:
    """Template to what it renders to, made once for each values. Raises HelmValuesError,
    HelmRenderError.
    """
    return _texts(json.dumps(given))


@cache
def _texts(given: str) -> Mapping[str, str]:
    return chart().render(json.loads(given), name=RELEASE, namespace=NAMESPACE)


def manifests(given: Mapping[str, Any]) -> tuple[Manifest, ...]:
    """Every object, the test's pod among them, without NOTES.txt."""
    return tuple(
        content
        for path, text in sorted(texts(given).items())
        if path.endswith(".yaml")
        for content in _load(text)
        if content
    )


@cache
def of_set(name: str) -> tuple[Manifest, ...]:
    """Every object of a set."""
    return manifests(values(name))


def _load(text: str) -> list[Any]:
    """The documents of `text`. libyaml reads them five times as fast as Python."""
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))
