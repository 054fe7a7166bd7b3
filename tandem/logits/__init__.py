"""Logits processors that are exact across prefill and decode. What a processor's author needs is
here.
"""

from tandem.logits.processor import (
    INTERFACE_VERSION,
    HistoryUnavailableError,
    LogitsProcessor,
    Need,
    Row,
    TokenHistory,
)

__all__ = [
    "INTERFACE_VERSION",
    "HistoryUnavailableError",
    "LogitsProcessor",
    "Need",
    "Row",
    "TokenHistory",
]
