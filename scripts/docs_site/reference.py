"""The API reference: a page of Markdown for each list of modules, from signatures and docstrings.
The modules are read and not imported, so the site's environment needs nothing of the product's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import griffe
from docs_site.navigation import ROOT

SHOWN_SPECIAL = {"__call__", "__enter__", "__aenter__"}
"""Methods with two underscores that are part of what a caller or an author writes."""


class Modules:
    """The packages of this repository, each read once."""

    def __init__(self, root: Path = ROOT) -> None:
        folders = [root, *sorted(root.glob("kits/*/"))]
        self._loader = griffe.GriffeLoader(search_paths=folders)
        self._packages: dict[str, griffe.Module] = {}

    def page(self, title: str, names: list[str]) -> str:
        """The text of the page about these modules."""
        parts = [f"# {title}"]
        for name in names:
            parts.append(f"## {name}\n\n```{{py:module}} {name}\n```")
            parts += self._module(name)
        return "\n\n".join(parts) + "\n"

    def _module(self, name: str) -> Iterator[str]:
        package = self._package(name.partition(".")[0])
        module = package[name.partition(".")[2]] if "." in name else package
        if module.docstring:
            yield module.docstring.value
        for member in _public(module):
            yield _entry(member.name, member)

    def _package(self, name: str) -> griffe.Module:
        if name not in self._packages:
            self._packages[name] = self._loader.load(name)
            self._loader.resolve_aliases(external=False)
        return self._packages[name]


def _public(module: griffe.Module) -> list[griffe.Object | griffe.Alias]:
    """What a module exports; of a module without `__all__` what is its own, in its order."""
    if module.exports is not None:
        names = [str(name) for name in module.exports]
        # A function may have the name of the submodule that it comes from.
        paths = [module.imports.get(name, f"{module.path}.{name}") for name in names]
        return [module.modules_collection[path] for path in paths]
    return [
        member
        for name, member in module.members.items()
        if not name.startswith("_") and not member.is_alias and not member.is_module
    ]


def _entry(name: str, member: griffe.Object | griffe.Alias) -> str:
    """A directive of Sphinx' Python domain, around the docstring and the members."""
    target = member.final_target if isinstance(member, griffe.Alias) else member
    body = [target.docstring.value] if target.docstring else []
    options: list[str] = []
    if isinstance(target, griffe.Class):
        kind, shown = "class", name + _parameters(target)
        if target.bases:
            body.insert(0, "Bases: " + ", ".join(f"`{base}`" for base in target.bases))
        body += [_entry(each.name, each) for each in _members(target)]
    elif isinstance(target, griffe.Function):
        kind = "function" if isinstance(target.parent, griffe.Module) else "method"
        shown = target.signature(name=name)
        options += [f":{label}:" for label in _labels(target)]
    else:
        in_class = isinstance(target.parent, griffe.Class)
        kind, shown = ("property" if "property" in target.labels else "attribute"), name
        kind = kind if in_class else "data"
        options += _value(target)
    return _directive(f"py:{kind}", shown, options, body)


def _directive(kind: str, shown: str, options: list[str], body: list[str]) -> str:
    inner = "\n\n".join(body)
    fence = "`" * max([3, *(_ticks(line) + 1 for line in inner.splitlines())])
    head = "\n".join([f"{fence}{{{kind}}} {shown}", *options])
    return f"{head}\n\n{inner}\n{fence}"


def _ticks(line: str) -> int:
    bare = line.lstrip()
    return len(bare) - len(bare.lstrip("`"))


def _parameters(target: griffe.Class) -> str:
    """How an instance is made, where the class says so itself: others list their attributes."""
    made = target.all_members.get("__init__")
    if made is None or not made.is_function or "dataclass" in target.labels:
        return ""
    own = made.final_target if isinstance(made, griffe.Alias) else made
    listed = list(own.parameters)[1:]
    text = griffe.Function("", parameters=griffe.Parameters(*listed)).signature(name="")
    return str(text).removesuffix(" -> None")


def _members(target: griffe.Class) -> Iterator[griffe.Object | griffe.Alias]:
    """Public members, inherited ones of this repository's behind those of the class."""
    for member in (target.inherited_members | target.members).values():
        if member.is_class or (member.name.startswith("_") and member.name not in SHOWN_SPECIAL):
            continue
        if "instance-attribute" in member.labels and not member.docstring and not member.annotation:
            continue
        yield member


def _labels(target: griffe.Function) -> Iterator[str]:
    for label, option in (
        ("async", "async"),
        ("abstractmethod", "abstractmethod"),
        ("classmethod", "classmethod"),
        ("staticmethod", "staticmethod"),
    ):
        if label in target.labels:
            yield option


def _value(target: griffe.Attribute) -> list[str]:
    options = []
    if target.annotation is not None:
        options.append(f":type: {target.annotation}")
    value = str(target.value) if target.value is not None else ""
    if value and len(value) <= 60 and "\n" not in value and "field(" not in value:
        options.append(f":value: {value}")
    return options
