"""What the shapes of TensorRT-LLM's tests say of where they do not hold."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.errors import UnsupportedError


def differs(reason: str) -> Any:
    """Marks what does not hold here."""
    errors = (AssertionError, AttributeError, TypeError, UnsupportedError)
    return pytest.mark.xfail(reason=reason, raises=errors)
