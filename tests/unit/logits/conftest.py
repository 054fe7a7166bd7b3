from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from logits_bench import Library

ON_A_GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
)


@pytest.fixture(params=["numpy", "torch", ON_A_GPU])
def library(request: pytest.FixtureRequest) -> Library:
    """What the rows are."""
    found: Library = request.param
    return found
