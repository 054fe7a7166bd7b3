"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The model that ships with the repository."""
    return ROOT / "model" / "tandem-tiny"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run in several processes, those of a file stay together, and so do all that start
    SGLang: each of its engines takes gigabytes.
    """
    for item in items:
        together = "sglang" if item.get_closest_marker("sglang") else item.location[0]
        item.add_marker(pytest.mark.xdist_group(together))
