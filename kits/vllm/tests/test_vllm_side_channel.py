"""Strangers at the port at which decode asks how prefill's memory is read."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import msgspec
import pytest
import zmq

from tandem.free_ports import LOOPBACK, FreePorts
from tandem_vllm.side_channel import SideChannel

ASKS = b"get_meta_msg"
PATIENCE_MS = 20_000
encode = msgspec.msgpack.encode


@pytest.fixture
def port() -> Iterator[int]:
    with ExitStack() as held:
        number = FreePorts(held).port()
        channel = SideChannel({(0, 0): b"first", (0, 1): b"second", 7: b"old"}, LOOPBACK, number)
        yield number
        channel.close()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


def ask(context: zmq.Context[zmq.Socket[bytes]], port: int, *asked: object) -> list[bytes]:
    """As vLLM's own worker does."""
    with context.socket(zmq.REQ) as asking:
        asking.connect(f"tcp://{LOOPBACK}:{port}")
        asking.send(encode(asked))
        assert asking.poll(PATIENCE_MS), "nobody answered"
        return asking.recv_multipart()


def wait_for_the_end(peer: socket.socket) -> None:
    """Raises TimeoutError where the connection goes on."""
    with suppress(ConnectionResetError):
        while peer.recv(100):
            pass


def test_each_rank_is_answered_with_the_time(
    port: int, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    for asked, expected in (((0, 0), b"first"), ((0, 1), b"second"), ((7,), b"old")):
        said, now = ask(context, port, ASKS, *asked)
        assert said == expected
        assert msgspec.msgpack.decode(now) > 0


@pytest.mark.promise("S5-866")
def test_messages_of_another_shape_get_no_answer_and_cost_nothing(
    port: int, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    wrong = (b"", b"\xc1", b"\xa3\xff\xff\xff", encode(7), encode(["x", 0, 0]), encode([ASKS]))
    wrong += (encode([ASKS, 0, 9]), encode([ASKS, "0", 0]), encode([ASKS, [0], {}]))
    wrong += (b"\x91" * 1023 + b"\x00", b"\x81" * 900 + b"\x00", b"\x81\x81\x01\x02\x03")
    with context.socket(zmq.DEALER) as stranger:
        stranger.connect(f"tcp://{LOOPBACK}:{port}")
        for message in wrong:
            stranger.send_multipart([b"", message])
        stranger.send(encode([ASKS, 0, 0]))
        stranger.send_multipart([b"", b"more", encode([ASKS, 0, 0])])
        stranger.send_multipart([b"", encode([ASKS, 0, 1])])
        assert stranger.poll(PATIENCE_MS), "the thread is over"
        assert stranger.recv_multipart()[1] == b"second", "the others got an answer"
    assert ask(context, port, ASKS, 0, 0)[0] == b"first"


@pytest.mark.promise("S5-866")
@pytest.mark.parametrize(
    "stray",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00" + bytes(512), b"\x01\x00" * 9],
    ids=["HTTP", "TLS", "ZeroMQ 2"],
)
def test_whoever_does_not_begin_as_zeromq_3_does_is_not_let_in(
    port: int, context: zmq.Context[zmq.Socket[bytes]], stray: bytes
) -> None:
    with socket.create_connection((LOOPBACK, port), timeout=PATIENCE_MS / 1000) as peer:
        peer.sendall(stray)
        wait_for_the_end(peer)
    assert ask(context, port, ASKS, 0, 0)[0] == b"first"


@pytest.mark.promise("S5-866")
def test_who_sends_more_than_a_question_is_cut_off(
    port: int, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    with (
        context.socket(zmq.DEALER) as stranger,
        stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor,
    ):
        stranger.connect(f"tcp://{LOOPBACK}:{port}")
        stranger.send_multipart([b"", bytes(100_000)])
        assert monitor.poll(PATIENCE_MS), "it is still connected"
    assert ask(context, port, ASKS, 0, 0)[0] == b"first"
