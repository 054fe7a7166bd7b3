"""helm/tandem as Helm itself renders it with each set of values in ci/ and examples/."""

import difflib
import re
from collections.abc import Iterator, Mapping
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
_HASHES = re.compile(r"(?<=: )[0-9a-f]{64}$|(?<=deployment_revision: )[0-9a-f]{12}$", re.MULTILINE)


@cache
def chart() -> Chart:
    return Chart.load(CHART)


@cache
def values(name: str) -> Mapping[str, Any]:
    content: Mapping[str, Any] = yaml.safe_load(_PATHS[name].read_text(encoding="utf-8"))
    return content


def texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Template to what it renders to. Raises HelmValuesError, HelmRenderError."""
    return chart().render(dict(given), name=RELEASE, namespace=NAMESPACE)


def manifests(given: Mapping[str, Any]) -> tuple[Manifest, ...]:
    """Every object, the test's pod among them, without NOTES.txt."""
    return tuple(
        content
        for path, text in sorted(texts(given).items())
        if path.endswith(".yaml")
        for content in yaml.safe_load_all(text)
        if content
    )


@cache
def of_set(name: str) -> tuple[Manifest, ...]:
    """Every object of a set."""
    return manifests(values(name))


def golden(name: str) -> str:
    """What the set changes of the default render, as a diff, without hashes."""
    lines = difflib.unified_diff(
        list(_lines(of_set("default"))),
        list(_lines(of_set(name))),
        fromfile="default",
        tofile=name,
        n=2,
        lineterm="",
    )
    return "".join(f"{re.sub('^@@.*@@$', '@@', line)}\n" for line in lines)


def _lines(objects: tuple[Manifest, ...]) -> Iterator[str]:
    for each in sorted(objects, key=lambda each: (each["kind"], each["metadata"]["name"])):
        shown = dict(each)
        # Written by others: tests/monitoring holds them to what they must be.
        if each["kind"] == "PrometheusRule":
            shown["spec"] = {"groups": [group["name"] for group in each["spec"]["groups"]]}
        elif "dashboard" in each["metadata"]["name"]:
            shown["data"] = sorted(each["data"])
        yield "---"
        yield from _HASHES.sub("…", yaml.dump(shown, Dumper=_Dumper, width=110)).splitlines()


class _Dumper(yaml.SafeDumper):
    """A dumper that writes text of several lines as a block."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]
