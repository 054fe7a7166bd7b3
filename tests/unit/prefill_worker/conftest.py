"""The rules of one phase, on the bench that the workers' own tests use."""

from __future__ import annotations

from pathlib import Path

import pytest
from worker_harness import Bench

from tandem.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(model_path: Path) -> Tokenizer:
    return Tokenizer.load(model_path)


@pytest.fixture(params=["inline", "later"], autouse=True)
def _hooks_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test: with hooks that judge at once, and with ones that judge elsewhere."""
    monkeypatch.setattr(Bench, "hooks_run", request.param)
