"""The program of a pool in tests: it obeys its orders, which are lists of words."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from typing import NoReturn

import msgspec

from tandem.pool.boot import Boot, Loaded
from tandem.pool.child import connect, ignore_signals, receive
from tandem.pool.frames import frame


class FaultyBoot(Boot, frozen=True, kw_only=True, tag=True):
    fault: str = ""


class Order(msgspec.Struct, frozen=True, tag=True):
    words: list[str]


encoder = msgspec.msgpack.Encoder()
asks: msgspec.msgpack.Decoder[FaultyBoot | Order] = msgspec.msgpack.Decoder(FaultyBoot | Order)


def main() -> int:
    ignore_signals()
    stream = connect()
    boots: list[str] = []
    while (payload := receive(stream)) is not None:
        ask = asks.decode(payload)
        if isinstance(ask, FaultyBoot):
            if ask.fault == "hang":
                hang()
            boots.append(ask.name)
            stream.sendall(frame(encoder.encode(Loaded(ask.fault))))
            continue
        match ask.words:
            case ["boots"]:
                answer = boots
            case ["long", size]:
                answer = ["x" * int(size)]
            case ["wait", began, end]:
                for name, mode in ((began, "w"), (end, "r")):  # FIFOs: to open them waits
                    with open(name, mode):
                        answer = []
            case [fault]:
                do(fault, stream)
                answer = [str(os.getpid())]
        stream.sendall(frame(encoder.encode(answer)))
    return 0


def do(fault: str, stream: socket.socket) -> None:
    match fault:
        case "pid":
            pass
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            sys.exit(0)
        case "hang":
            hang()
        case "garbage":
            stream.sendall(frame(b"\xc1"))
        case "flood":
            stream.sendall(b"\xff" * 2**20)
        case "two answers":
            stream.sendall(2 * frame(encoder.encode([])))
        case "eat":
            _eaten = [b"x" * 2**20 for _ in range(1536)]
            hang()
        case "close":
            stream.shutdown(socket.SHUT_RDWR)
            hang()
        case "fork":  # the socket stays open, and nobody answers
            if not os.fork():
                receive(stream)
            os._exit(0)


def hang() -> NoReturn:
    """Where no signal but one reaches it."""
    while True:
        ctypes.CDLL(None).pause()


if __name__ == "__main__":
    sys.exit(main())
