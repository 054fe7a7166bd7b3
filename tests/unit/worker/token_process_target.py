"""What a stand-in for a further process does: it answers, until it is told otherwise."""

from __future__ import annotations

import asyncio
import socket
import sys
import time

from tandem import orphans
from tandem.worker.process_link import Channel, Join, Live, Lost, Refused, Scrape, Serving


def run(stream: socket.socket, parent: int, word: str) -> None:
    orphans.die_with(parent)
    asyncio.run(_answer(stream, word))


async def _answer(stream: socket.socket, word: str) -> None:
    channel = await Channel.over(stream)
    while True:
        number, question = await channel.receive()
        match question:
            case Join(ticket):
                await channel.send((number, Serving(len(ticket)) if ticket else Refused(word)))
            case Lost(reason):
                sys.exit(len(reason))
            case Scrape():
                await channel.send((number, word))
            case Live():
                time.sleep(float(word))  # noqa: ASYNC251 - it hangs
                await channel.send((number, None))
