"""Logits processors that are exact across prefill and decode. What a processor's author needs is
here.
"""

from tandem.logits.history import HistoryUnavailableError, TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import (
    INTERFACE_VERSION,
    BaseLogitsProcessor,
    BatchedLogitsProcessor,
    LogitsProcessor,
    Need,
    Row,
)

__all__ = [
    "INTERFACE_VERSION",
    "BaseLogitsProcessor",
    "BatchedLogitsProcessor",
    "HistoryUnavailableError",
    "LogitsProcessor",
    "Model",
    "Need",
    "Row",
    "TokenHistory",
]
