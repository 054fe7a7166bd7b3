"""Several components asked at once, each within its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tandem.cli.client import ApiError

T = TypeVar("T")


def start(
    addresses: Iterable[str],
    ask: Callable[[str], T],
    running: dict[str, threading.Thread] | None = None,
) -> dict[str, tuple[threading.Thread, list[T | ApiError]]]:
    """A thread for each. `running`: threads of earlier calls, by address. A component whose thread
    still runs, because its peer sends a little now and then, is not asked again and gives nothing.
    """
    running = {} if running is None else running
    for address in [each for each, thread in running.items() if not thread.is_alive()]:
        del running[address]
    asked = {}
    for address in dict.fromkeys(addresses):
        answers: list[T | ApiError] = []
        if address not in running:
            running[address] = threading.Thread(
                target=_ask, args=(ask, address, answers), daemon=True
            )
            running[address].start()
        asked[address] = running[address], answers
    return asked


def _ask(ask: Callable[[str], T], address: str, answers: list[T | ApiError]) -> None:
    try:
        answers.append(ask(address))
    except ApiError as error:
        answers.append(error)
    except Exception as error:  # noqa: BLE001 - whatever it sends, the others are shown
        answers.append(ApiError(f"its answer cannot be read: {error!r}"))


def collect(
    asked: Mapping[str, tuple[threading.Thread, list[T | ApiError]]], until: float
) -> dict[str, T | ApiError]:
    """The answers by address, as far as answers have come until the time `until`."""
    found: dict[str, T | ApiError] = {}
    for address, (thread, answers) in asked.items():
        thread.join(max(0.0, until - time.monotonic()))
        found[address] = answers[0] if answers else ApiError("it does not answer in time")
    return found
