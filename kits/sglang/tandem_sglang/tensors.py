"""Runs in SGLang's scheduler process: small values of a batch on their way to the device."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.utils.common import is_pin_memory_available


def on_device(values: Any, dtype: Any, device: Any) -> Any:
    """A tensor of `values` on `device`, for which the loop does not wait: from pageable memory it
    would.
    """
    pinned = is_pin_memory_available(device)
    return torch.tensor(values, dtype=dtype, pin_memory=pinned).to(device, non_blocking=True)
