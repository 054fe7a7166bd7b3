"""Whether a peer is still there: its machine, which the kernel asks, and its process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from math import isfinite
from typing import Any, Final

_LOST_SECONDS: Final = 15
"""For so long a peer's machine may acknowledge nothing."""
_PROBE_SECONDS: Final = 5
_LOOKS: Final = 4
"""In how many looks in a row nothing may have come, though pings were sent."""


def watch_machine(sock: Any) -> None:
    """Have the kernel find a peer whose machine, or way, is lost, though its loop may stand still
    for longer; and send what is written at once.
    """
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # uvloop does so. On asyncio's loop a message would wait 40 ms for the last one's ACK.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _LOST_SECONDS - _PROBE_SECONDS),
        (socket.TCP_KEEPINTVL, _PROBE_SECONDS),
        (socket.TCP_KEEPCNT, 1),
        (socket.TCP_USER_TIMEOUT, 1000 * _LOST_SECONDS),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class ProcessWatch:
    """Pings a peer that says nothing, and gives it up after `seconds`, or up to a quarter longer;
    where that is no finite number, never.

    It is measured by looks of the own loop, which may have stood still itself.
    """

    def __init__(
        self, seconds: float, *, ping: Callable[[], None], give_up: Callable[[], None]
    ) -> None:
        self._pause = seconds / _LOOKS
        self._ping = ping
        self._give_up = give_up
        self.heard = True
        """The peer has said something since the last look; to be set with whatever it says."""
        self._silent_looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Look at the peer from now on, every quarter of that time."""
        if isfinite(self._pause):
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)

    def stop(self) -> None:
        """Do not look at the peer any longer."""
        self._pause = float("inf")
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._silent_looks = 0 if self.heard else self._silent_looks + 1
        self.heard = False
        if self._silent_looks >= _LOOKS:
            self._give_up()
            return
        if self._silent_looks:
            self._ping()
        self.begin()
