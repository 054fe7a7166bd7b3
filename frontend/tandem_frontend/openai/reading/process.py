"""A process that reads large bodies, started by the frontend with the socket FD as its argument.

It ends by itself when a body takes more CPU time than it may, or the frontend has gone; the
frontend ends it when a body takes too much memory, or far too long.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final

from tandem.errors import InternalError, TandemError
from tandem.pool.boot import Loaded
from tandem.pool.child import connect, ignore_signals, receive
from tandem.pool.frames import frame
from tandem.settled import settle
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.prefixes import Known
from tandem_frontend.openai.reading import wire
from tandem_frontend.openai.reading.moderations import ModerationReader
from tandem_frontend.openai.reading.reader import Reader, moderation_reader

log = logging.getLogger(__name__)

NICENESS: Final = 10
"""The frontend's event loop gets nine times as much of a core as a process that reads."""


def main() -> int:
    os.nice(NICENESS)
    ignore_signals()
    stream = connect()
    readers: dict[str, Reader | ModerationReader] = {}
    seconds = 0.0
    prefixes = _Asking(stream)
    while (payload := receive(stream)) is not None:
        ask = wire.told.decode(payload)
        if isinstance(ask, wire.ReaderBoot):
            seconds = ask.seconds
            stream.sendall(frame(wire.encoder.encode(_load(readers, ask))))
            continue
        assert isinstance(ask, wire.ReadingOrder)  # who says what is known was asked
        signal.setitimer(signal.ITIMER_PROF, seconds)  # past it, the signal ends this process
        reply = wire.encoder.encode(_reply(readers[ask.model], ask, prefixes))
        signal.setitimer(signal.ITIMER_PROF, 0)
        stream.sendall(frame(reply))
    return 0


def _load(readers: dict[str, Reader | ModerationReader], boot: wire.ReaderBoot) -> Loaded:
    sys.path[:] = boot.import_path
    try:
        config = FrontendConfig(**boot.settings)
        readers[boot.name] = Reader.load(config) if boot.name else moderation_reader(config)
    except Exception as error:  # noqa: BLE001 - whatever it is, the frontend says it
        return Loaded(f"{type(error).__name__}: {error}")
    settle().join()  # its time is not the first body's
    return Loaded()


class _Asking:
    """Asks the frontend what it knows of prompts."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def known(self, prompts: Sequence[Sequence[bytes]]) -> Sequence[Known]:
        """See `PromptPrefixes`. Ends the process where the frontend has gone."""
        self._stream.sendall(
            frame(wire.encoder.encode(wire.SegmentNames([[*names] for names in prompts])))
        )
        payload = receive(self._stream)
        if payload is None:
            raise SystemExit(0)
        beginnings = wire.told.decode(payload)
        assert isinstance(beginnings, wire.Beginnings)
        return beginnings.known


def _reply(
    reader: Reader | ModerationReader, order: wire.ReadingOrder, prefixes: _Asking
) -> wire.Reply:
    try:
        if isinstance(reader, ModerationReader):
            return reader.read(order)
        return reader.read(order, prefixes)
    except TandemError as error:
        return wire.Refused.of(error)
    except Exception:
        log.exception("a body could not be read")
        return wire.Refused.of(InternalError("The frontend failed; see its log"))


if __name__ == "__main__":
    sys.exit(main())
