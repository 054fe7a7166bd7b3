"""The few things in which numpy and torch differ for a processor of ours."""

from __future__ import annotations

import sys
from typing import Any


def like(row: Any, array: Any) -> Any:
    """A numpy array in the library and on the device of `row`."""
    if type(row).__module__ == "numpy":
        return array
    return sys.modules["torch"].as_tensor(array, device=row.device)
