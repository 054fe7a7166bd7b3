"""h2spec, which tries what RFC 9113 and RFC 7541 say on a server, and what it found."""

from __future__ import annotations

import subprocess
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WAIT_SECONDS = 1
"""Given to the server for each answer. A case that fails takes so long, and others milliseconds."""
RUN_SECONDS = 240
FAILURES = Path(__file__).with_name("h2spec_failures.toml")


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
