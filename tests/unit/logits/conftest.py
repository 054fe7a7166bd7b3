from __future__ import annotations

import pytest
import torch
from logits_bench import Library

ON_A_GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
)


@pytest.fixture(params=["numpy", "torch", ON_A_GPU])
def library(request: pytest.FixtureRequest) -> Library:
    """What the rows are."""
    found: Library = request.param
    return found
