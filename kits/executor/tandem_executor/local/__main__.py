"""The program `local_executor FD`: workers for an executor in another process, which is its parent.

It is given an order over the socket FD, serves it, and ends when the socket does. So it ends with
its parent too, however that ends, and has the time to end the processes of its engine.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import socket
import sys

import uvloop

from tandem import logs
from tandem.errors import StartError
from tandem.pool import child
from tandem.pool.frames import frame
from tandem_executor.local import process, workers
from tandem_executor.local.judging import Send, StandIns, message
from tandem_executor.local.process import ServingOrder

_CLOSE_SECONDS = 30
"""By then the kernel ends this process, whatever it hangs in."""


def main() -> int:
    """Serve one order. Returns the exit status."""
    child.ignore_signals()
    stream = child.connect()
    order = child.receive(stream)
    if order is not None:
        uvloop.run(_serve(stream, pickle.loads(order)))
    return 0


async def _serve(stream: socket.socket, order: ServingOrder) -> None:
    """Until the parent closes the socket, or an engine dies."""
    settings = next(iter(order.configs.values()))
    logs.configure("local_executor", format=settings.log_format, level=settings.log_level)
    reader, writer = await asyncio.open_unix_connection(sock=stream)
    loop = asyncio.get_running_loop()

    def send(message: bytes) -> None:
        writer.write(frame(message))

    stand_ins = StandIns(send)
    serving = loop.create_task(_serve_order(order, send, writer, stand_ins))
    left = loop.create_task(_listen(reader, stand_ins))
    await asyncio.wait({serving, left}, return_when=asyncio.FIRST_COMPLETED)
    signal.alarm(_CLOSE_SECONDS)
    for task in (serving, left):
        task.cancel()
    await asyncio.wait({serving, left})
    writer.close()


async def _listen(reader: asyncio.StreamReader, stand_ins: StandIns) -> None:
    """Until the parent closes the socket."""
    while (said := await child.read_message(reader)) is not None:
        stand_ins.take(*json.loads(said))


async def _serve_order(
    order: ServingOrder, send: Send, writer: asyncio.StreamWriter, stand_ins: StandIns
) -> None:
    try:
        async with workers.serving(
            order.configs,
            aggregated=order.aggregated,
            register=stand_ins.take_classifiers,
            parks=_never,
        ) as died:
            send(message(process.READY, ""))
            send(message(process.DIED, (await died).message))
            await writer.drain()
    except StartError as error:
        send(message(process.FAILED, str(error)))
        await writer.drain()


def _never() -> bool:
    """Nobody tells this process whether outputs of another one are judged."""
    return False


if __name__ == "__main__":
    sys.exit(main())
