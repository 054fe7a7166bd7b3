"""Outputs on their way past ZeroMQ: all of them, whole and in order, whatever the reader does, and
a scheduler that never waits for one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import stat
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from tandem_sglang.output_socket import OutputReader, OutputWriter, path_beside

SECONDS = 60.0
MOST_AT_ONCE = 16 * 1024


@pytest.fixture
def path() -> Iterator[str]:
    with TemporaryDirectory() as folder:
        yield f"{folder}/outputs.o"


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            if holds():
                return
            await asyncio.sleep(0.001)


def sends_nothing_later() -> bool:
    return not any(each.name == "outputs" for each in threading.enumerate())


class Heard:
    """A reader, and what it took."""

    def __init__(self, path: str) -> None:
        self.messages: list[bytes] = []
        self.reader = OutputReader(path, self.messages.append)

    async def until(self, count: int) -> list[bytes]:
        await eventually(lambda: len(self.messages) >= count)
        return self.messages


@pytest.fixture
async def heard(path: str) -> AsyncIterator[Heard]:
    made = Heard(path)
    yield made
    made.reader.close()


@pytest.fixture
def writer(path: str) -> Iterator[OutputWriter]:
    made = OutputWriter(path)
    yield made
    made.close()


def numbered(count: int, size: int) -> list[bytes]:
    """Each is of its own."""
    return [b"%d " % number * size for number in range(count)]


@pytest.mark.promise("S5-457")
@pytest.mark.parametrize("sizes", [[1], [0, 1, 3, 4, 5], [MOST_AT_ONCE - 5, MOST_AT_ONCE, 40_000]])
async def test_messages_of_any_size_come_whole_and_in_order(
    heard: Heard, writer: OutputWriter, sizes: list[int]
) -> None:
    sent = [os.urandom(size) for _ in range(20) for size in sizes]
    for message in sent:
        writer.send(message)
        await asyncio.sleep(0)
    assert await heard.until(len(sent)) == sent


async def test_the_rest_of_a_message_is_no_message(heard: Heard, writer: OutputWriter) -> None:
    """However it looks. It is what the second read brings."""
    message = b"x" * (MOST_AT_ONCE - 4) + struct.pack("<I", 4) + b"rest"
    writer.send(message)
    assert await heard.until(1) == [message]


@pytest.mark.promise("S5-457")
async def test_a_scheduler_does_not_wait_for_a_process_that_is_busy(
    heard: Heard, writer: OutputWriter
) -> None:
    """What is sent meanwhile is many times what the kernel keeps."""
    sent = numbered(200, 20_000)
    for message in sent:
        writer.send(message)
    assert heard.messages == []
    assert await heard.until(200) == sent
    writer.send(b"later")
    assert (await heard.until(201))[-1] == b"later"
    await eventually(sends_nothing_later)


@pytest.mark.promise("S5-457")
async def test_what_is_sent_while_a_process_catches_up_comes_after_what_waits(
    heard: Heard, writer: OutputWriter
) -> None:
    sent = numbered(400, 20_000)
    for place, message in enumerate(sent):
        writer.send(message)
        if place > 200:
            await asyncio.sleep(0)
    assert await heard.until(400) == sent


@pytest.mark.promise("S5-457")
async def test_a_process_that_was_started_again_gets_what_is_new(
    path: str, writer: OutputWriter
) -> None:
    first = Heard(path)
    writer.send(b"one")
    await first.until(1)
    first.reader.close()
    second = Heard(path)
    writer.send(b"two")
    assert await second.until(1) == [b"two"]
    second.reader.close()


async def test_a_process_that_was_killed_leaves_nothing_in_the_way(
    path: str, writer: OutputWriter
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(path)
    heard = Heard(path)
    writer.send(b"here")
    assert await heard.until(1) == [b"here"]
    heard.reader.close()


async def test_what_is_for_nobody_is_not_kept(path: str, writer: OutputWriter) -> None:
    for number in range(3):
        writer.send(b"%d" % number)
    heard = Heard(path)
    writer.send(b"three")
    assert await heard.until(1) == [b"three"]
    heard.reader.close()


async def test_half_a_message_of_the_dead_is_not_the_next_one_s(
    path: str, writer: OutputWriter
) -> None:
    first = Heard(path)
    for message in numbered(50, 20_000):
        writer.send(message)
    first.reader.close()
    await eventually(sends_nothing_later)
    second = Heard(path)
    writer.send(b"whole")
    assert await second.until(1) == [b"whole"]
    second.reader.close()


async def test_several_schedulers_write_to_one_process(heard: Heard, path: str) -> None:
    writers = [OutputWriter(path) for _ in range(3)]
    for number in range(100):
        for place, each in enumerate(writers):
            each.send(b"%d %d" % (place, number))
    found = await heard.until(300)
    for place in range(3):
        of = [message for message in found if message.startswith(b"%d " % place)]
        assert of == [b"%d %d" % (place, number) for number in range(100)]
    for each in writers:
        each.close()


async def test_it_takes_turns_with_whatever_else_there_is(
    heard: Heard, writer: OutputWriter
) -> None:
    for message in numbered(100, 500):
        writer.send(message)
    seen = [0]
    async with asyncio.timeout(SECONDS):
        while seen[-1] < 100:
            await asyncio.sleep(0)
            seen.append(len(heard.messages))
    most = max(after - before for before, after in itertools.pairwise(seen))
    assert most <= MOST_AT_ONCE // 1_000 + 1  # the first may have been there in part


async def test_it_is_nobody_else_s_and_leaves_nothing(path: str, writer: OutputWriter) -> None:
    heard = Heard(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    writer.send(b"one")
    await heard.until(1)
    numbers = [each.fileno() for each in heard.reader._connections]
    heard.reader.close()
    assert os.listdir(os.path.dirname(path)) == []
    loop = asyncio.get_running_loop()
    assert not any(loop.remove_reader(each) for each in numbers)


async def test_writers_that_end_are_forgotten(heard: Heard, path: str) -> None:
    for number in range(5):
        writer = OutputWriter(path)
        writer.send(b"%d" % number)
        await heard.until(number + 1)
        writer.close()
    await eventually(lambda: not heard.reader._connections)


@pytest.mark.parametrize(
    ("address", "path"),
    [
        (b"ipc:///tmp/a", "/tmp/a.o"),
        (b"ipc:///tmp/a\0", "/tmp/a.o"),
        (b"tcp://127.0.0.1:5", None),
        (b"inproc://a", None),
        (b"ipc:///" + b"a" * 104, "/" + "a" * 104 + ".o"),
        (b"ipc:///" + b"a" * 105, None),
    ],
)
def test_only_a_socket_of_this_machine_has_one_beside_it(address: bytes, path: str | None) -> None:
    assert path_beside(SimpleNamespace(last_endpoint=address)) == path
