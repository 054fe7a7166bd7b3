"""A worker's parts in this process, over an engine whose steps the test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(model_path: Path) -> Tokenizer:
    return Tokenizer.load(model_path)
