"""h2spec, which tries what RFC 9113 and RFC 7541 say on a server: built once, and what it found."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MODULE = "github.com/summerwind/h2spec/cmd/h2spec"
VERSION = "v2.2.1+incompatible"
WAIT_SECONDS = 1
"""Given to the server for each answer. A case that fails takes so long, and others milliseconds."""
RUN_SECONDS = 240
BUILD_SECONDS = 900
FAILURES = Path(__file__).with_name("h2spec_failures.toml")


class UnavailableError(Exception):
    """h2spec cannot be had here."""


@dataclass(frozen=True)
class Outcome:
    """Cases by their section and title."""

    passed: int
    skipped: int
    failed: Mapping[str, str]
    """With what the server did instead."""

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed, {self.skipped} skipped"


def expected() -> Mapping[str, str]:
    """Cases that fail, and why they may."""
    listed = tomllib.loads(FAILURES.read_text(encoding="utf-8"))
    return {str(each["case"]): str(each["reason"]) for each in listed.get("failure", ())}


def binary() -> Path:
    """The program. It is built where it is not there yet. Raises UnavailableError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tandem-ci" / f"h2spec-{VERSION}"
    program = folder / "h2spec"
    if program.exists():
        return program
    if (go := shutil.which("go")) is None:
        raise UnavailableError("h2spec is built with Go, which is not here")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "go.mod").exists():
        _go(folder, go, "mod", "init", "h2spec")
    _go(folder, go, "get", "-tool", f"{MODULE}@{VERSION}")
    fresh = folder / f"h2spec.{os.getpid()}"
    _go(folder, go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(fresh), MODULE)
    fresh.replace(program)
    return program


def _go(folder: Path, *command: str) -> None:
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS
        )
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"h2spec cannot be built: {error.stderr[-300:]}") from error


def run(program: Path, address: str, report: Path) -> Outcome:
    """All cases, the strict ones too, against a server that speaks HTTP/2 at once."""
    host, _, port = address.rpartition(":")
    command = (
        *(str(program), "--strict", "--host", host, "--port", port),
        *("--timeout", str(WAIT_SECONDS), "--junit-report", str(report)),
    )
    subprocess.run(command, check=False, capture_output=True, timeout=RUN_SECONDS)
    return read(report.read_text(encoding="utf-8"))


def read(report: str) -> Outcome:
    """Of a report as JUnit writes it."""
    passed = skipped = 0
    failed: dict[str, str] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        wrong = case.find("error") if case.find("error") is not None else case.find("failure")
        if wrong is not None:
            failed[f"{case.get('package')}: {case.get('classname')}"] = wrong.text or ""
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Outcome(passed, skipped, failed)
