"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tandem.free_ports import FreePorts

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The model that ships with the repository."""
    return ROOT / "model" / "tandem-tiny"


@pytest.fixture
def free() -> Iterator[FreePorts]:
    """Ports that are the test's alone while it runs: one that is given up before its server
    listens may be another test's by then.
    """
    with ExitStack() as held:
        yield FreePorts(held)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts SGLang takes longest, and begins."""
    items.sort(key=lambda item: not _starts_sglang(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _FilesTogether(config, log)


class _FilesTogether(LoadScopeScheduling):
    """Where tests run in several processes, those of a file run in one of them, and so do all of a
    kind that start SGLang: each of its engines takes gigabytes.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return f"sglang, {path.split('/')[1]}" if _starts_sglang(nodeid) else path


def _starts_sglang(nodeid: str) -> bool:
    return "sglang" in nodeid.partition("[")[2] or _is_of_sglang(nodeid.partition("::")[0])


@cache
def _is_of_sglang(path: str) -> bool:
    """Whether all of a file is, or a test of it that has no engine in its name."""
    return "mark.sglang" in (ROOT / path).read_text(encoding="utf-8")
