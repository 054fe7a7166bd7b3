"""The program `local_executor FD`: workers for an executor in another process, which is its parent.

It is given an order over the socket FD, serves it, and ends when the socket does. So it ends with
its parent too, however that ends, and has the time to end the processes of its engine.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import sys

import uvloop

from local_executor import process, workers
from local_executor.process import Order
from tandem import child_process, logs
from tandem.errors import StartError

_CLOSE_SECONDS = 30
"""By then the kernel ends this process, whatever it hangs in."""


def main() -> int:
    """Serve one order. Returns the exit status."""
    child_process.ignore_signals()
    stream = socket.socket(fileno=int(sys.argv[1]))
    order = child_process.receive(stream)
    if order is not None:
        uvloop.run(_serve(stream, pickle.loads(order)))
    return 0


async def _serve(stream: socket.socket, order: Order) -> None:
    """Until the parent closes the socket, or an engine dies."""
    settings = next(iter(order.configs.values()))
    logs.configure("local_executor", format=settings.log_format, level=settings.log_level)
    reader, writer = await asyncio.open_unix_connection(sock=stream)
    loop = asyncio.get_running_loop()
    serving = loop.create_task(_serve_order(order, writer))
    left = loop.create_task(reader.read())
    await asyncio.wait({serving, left}, return_when=asyncio.FIRST_COMPLETED)
    signal.alarm(_CLOSE_SECONDS)
    for task in (serving, left):
        task.cancel()
    await asyncio.wait({serving, left})
    writer.close()


async def _serve_order(order: Order, writer: asyncio.StreamWriter) -> None:
    try:
        async with workers.serving(order.configs, aggregated=order.aggregated) as died:
            writer.write(process.line(process.READY))
            writer.write(process.line(process.DIED, (await died).message))
            await writer.drain()
    except StartError as error:
        writer.write(process.line(process.FAILED, str(error)))
        await writer.drain()


if __name__ == "__main__":
    sys.exit(main())
