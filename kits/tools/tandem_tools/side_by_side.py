"""Several components asked at once, each within its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tandem.cli.client import ApiError

T = TypeVar("T")


def start(
    addresses: Iterable[str], ask: Callable[[str], T]
) -> dict[str, tuple[threading.Thread, list[T | ApiError]]]:
    """A thread for each. One whose peer sends a little now and then is left to itself."""
    asked = {}
    for address in dict.fromkeys(addresses):
        answers: list[T | ApiError] = []
        thread = threading.Thread(target=_ask, args=(ask, address, answers), daemon=True)
        thread.start()
        asked[address] = thread, answers
    return asked


def _ask(ask: Callable[[str], T], address: str, answers: list[T | ApiError]) -> None:
    try:
        answers.append(ask(address))
    except ApiError as error:
        answers.append(error)


def collect(
    asked: Mapping[str, tuple[threading.Thread, list[T | ApiError]]], until: float
) -> dict[str, T | ApiError]:
    """The answers by address, as far as answers have come until the time `until`."""
    found: dict[str, T | ApiError] = {}
    for address, (thread, answers) in asked.items():
        thread.join(max(0.0, until - time.monotonic()))
        found[address] = answers[0] if answers else ApiError("it does not answer in time")
    return found
