"""Bytes of clients: the connection, the parser, the API and its answers, in this process."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Container, Iterator
from contextlib import contextmanager
from random import Random

from fuzzing import http_answers, requests
from fuzzing.frontend_bench import FrontendBench, bench
from fuzzing.http_text import spoil_http
from fuzzing.target import FoundError, Target

_FINE = (504,)
"""A client may ask for a time in which nothing can be done."""


class HttpSubject:
    """A connection for each input; its bytes come in pieces, then its client goes."""

    def __init__(self, frontend: FrontendBench) -> None:
        self._frontend = frontend

    async def give(self, data: bytes) -> None:
        wire = self._frontend.connect()
        for piece in _pieces(data):
            wire.protocol.data_received(piece)
            await asyncio.sleep(0)
        await self._frontend.settle()
        cut = not wire.is_closing()
        wire.close()
        await self._frontend.end()
        check(bytes(wire.written), data, cut=cut)

    async def left_open(self) -> int:
        return self._frontend.open


def check(written: bytes, data: bytes, *, cut: bool, fine: Container[int] = _FINE) -> None:
    """Raises FoundError for answers that no input may get. `fine`: of the server's errors."""
    if b"HEAD" in data:  # its answers have a length and no body, and where it was is not known
        return
    for status in http_answers.statuses(written, cut=cut):
        if status >= 500 and status not in fine:
            raise FoundError("5xx", f"status {status}: {written[:400]!r}")


def _pieces(data: bytes) -> Iterator[bytes]:
    """As the network might cut them: once in two, never."""
    random = Random(zlib.crc32(data))
    while data:
        size = len(data) if random.randrange(2) else random.randint(1, len(data))
        yield data[:size]
        data = data[size:]


@contextmanager
def subject() -> Iterator[HttpSubject]:
    with bench() as (_, frontend):
        yield HttpSubject(frontend)


HTTP = Target(
    name="http", goal=800_000, corpus=requests.requests, spoil=spoil_http, subject=subject
)
