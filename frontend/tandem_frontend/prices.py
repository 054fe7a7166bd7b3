"""What a request costs, where the operator has set prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import msgspec

from tandem.errors import ConfigError
from tandem.v1 import common_pb2

ANY = "*"
"""The name whose price is that of all models without a price of their own."""


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's, in any one currency."""

    prefill_second: float = 0.0
    """Price of a second of a prefill worker's computing."""
    decode_slot_second: float = 0.0
    """Price of a second of one slot of a decode worker."""
    kv_token_second: float = 0.0
    """Price of a second of one token's place in a KV cache, on either worker."""


class CostDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What a request took of the workers, for its answer."""

    prefill_seconds: float
    decode_slot_seconds: float
    kv_token_seconds: float


class Prices:
    """The prices of all models."""

    def __init__(self, prices: Mapping[str, Any]) -> None:
        """`prices`: a Price's fields by the model's name. Raises ConfigError."""
        try:
            self._prices = msgspec.convert(dict(prices), dict[str, Price])
        except msgspec.ValidationError as error:
            raise ConfigError(f"prices: {error}") from None
        for model, price in self._prices.items():
            if not all(isfinite(each) and each >= 0 for each in msgspec.structs.astuple(price)):
                raise ConfigError(f"prices: those of {model!r} are to be 0 or more")

    def cost(
        self, model: str, adapted: str, reports: Iterable[common_pb2.PhaseReport]
    ) -> tuple[float, CostDetails] | None:
        """A request's, rounded to 12 digits, and what it took; None: its model has no price.
        `adapted`: the model's name with its LoRA adapter's.
        """
        names = (name for name in (adapted, model, ANY) if name in self._prices)
        if (name := next(names, None)) is None:
            return None
        price, prefill, slots, kv = self._prices[name], 0.0, 0.0, 0.0
        for report in reports:
            kv += report.kv_token_seconds
            if report.phase == common_pb2.PHASE_PREFILL:
                prefill += report.worker_seconds
            else:
                slots += report.phase_seconds
        total = (
            price.prefill_second * prefill
            + price.decode_slot_second * slots
            + price.kv_token_second * kv
        )
        details = CostDetails(
            prefill_seconds=round(prefill, 6),
            decode_slot_seconds=round(slots, 6),
            kv_token_seconds=round(kv, 6),
        )
        return round(total, 12), details
