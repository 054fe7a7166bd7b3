"""A process of the hook pool, started by the worker with FD as its argument.

It reads chunks from the socket FD, runs the chain on them and writes rulings back. It imports what
hooks need and no engine. It ends when the worker closes its end of the socket, and with the worker.
"""

from __future__ import annotations

import os
import pickle
import resource
import socket
import sys
from functools import partial

import uvloop

from tandem import logs
from tandem.errors import StartError
from tandem.hooks.chain import Chain
from tandem.hooks.runner.processes.child import Child
from tandem.hooks.runner.processes.wire import ChainBoot, Started, encode
from tandem.pool.child import connect, ignore_signals, receive
from tandem.pool.frames import frame


async def serve(stream: socket.socket, boot: ChainBoot) -> int:
    """Build the chain, and run it until the end. Returns the exit status."""
    ours = os.getpid()
    try:
        chain = Chain.build(boot.settings, phase=boot.phase, model=boot.model)
        child = Child(stream, chain)
        await child.start()
        started = Started(resumable=chain.resumable)
    except StartError as error:
        started = Started(str(error))
    if os.getpid() != ours:
        os._exit(1)  # a hook has forked, and returned in both processes
    stream.sendall(frame(encode(started)))
    return 2 if started.error else await child.run()


def main() -> int:
    ignore_signals()
    stream = connect()
    payload = receive(stream)
    if payload is None:
        return 1
    boot: ChainBoot = pickle.loads(payload)
    sys.path[:] = boot.import_path
    os.register_at_fork(after_in_child=partial(os.close, stream.fileno()))  # it is not theirs
    logs.configure(boot.component, format=boot.log_format, level=boot.log_level)
    if boot.settings.memory_mb:
        limit = boot.settings.memory_mb * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return uvloop.run(serve(stream, boot))
