"""Runs in prefill's engine process: says to decode's NIXL agents how memory is read here, in the
words of vLLM's own listener, and in its place.

Strangers may reach the port. vLLM's listener would end for good at a message of another shape, and
no further decode worker could read; and libzmq would end the process where a peer that does not
begin as ZeroMQ 3 does, as any HTTP client, hangs up in the wrong moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import zmq

_ASKS = b"get_meta_msg"
_question = msgspec.msgpack.Decoder(list[bytes | int])
"""Takes nothing nested: a thousand arrays in each other would pass Python's limit of recursion."""
_MOST_BYTES = 1024
"""The length of a question, which has twenty or so: who sends a longer one is cut off."""
_STOP_SECONDS = 0.2


class SideChannel:
    """Listens until it is closed."""

    def __init__(self, payloads: Mapping[Any, bytes], host: str, port: int) -> None:
        """`payloads`: answers by rank, as vLLM counts ranks. Raises zmq.ZMQError where nothing can
        be bound there.
        """
        self._payloads = payloads
        self._socket = zmq.Context().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
        # Nobody authenticates peers, but with a domain libzmq takes none of ZeroMQ 2.
        self._socket.setsockopt(zmq.ZAP_DOMAIN, b"tandem")
        self._socket.setsockopt(zmq.IPV6, ":" in host)
        self._socket.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tandem-side-channel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Takes a moment."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with self._socket.context, self._socket:
            while not self._over.is_set():
                if self._socket.poll(1000 * _STOP_SECONDS):
                    self._answer(self._socket.recv_multipart())

    def _answer(self, message: list[bytes]) -> None:
        """What asks for nothing that there is gets no answer."""
        found = self._payloads.get(_rank(message[-1])) if len(message) == 3 else None
        if found is not None:
            now = msgspec.msgpack.encode(time.perf_counter())  # decode's agent compares clocks
            self._socket.send_multipart([message[0], b"", found, now])


def _rank(asked: bytes) -> Any:
    """Whose memory a question is about; None: it is no question."""
    try:
        question = _question.decode(asked)
    except msgspec.DecodeError:
        return None
    match question:
        case [said, int(rank)] if said == _ASKS:
            return rank
        case [said, int(stage), int(rank)] if said == _ASKS:
            return stage, rank
    return None
