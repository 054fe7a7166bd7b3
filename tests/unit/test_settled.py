"""What a process has loaded when it begins to serve is left alone by the garbage collector, and in
huge pages.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tandem import settled
from tandem.settled import HUGE_BYTES, settle

SECONDS = 60.0
SETTLING = f"""
import ctypes, json, mmap, re
from pathlib import Path
from tandem import settled

SIZE = 4 * {HUGE_BYTES}

def mapped(kind, part):
    memory = mmap.mmap(-1, SIZE, flags=kind | mmap.MAP_ANONYMOUS)
    for at in range(0, int(SIZE * part), 4096):
        memory[at] = at // 4096 % 251 + 1
    return memory

def huge(memory):
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for row in re.split(r"^(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text(), flags=re.M)[1:]:
        first, end = (int(each, 16) for each in row.split(" ", 1)[0].split("-"))
        if first <= start < end:
            kinds = r"(?:AnonHugePages|ShmemPmdMapped): +(\\d+)"
            return sum(int(found) * 1024 for found in re.findall(kinds, row))

# The shared ones keep the others from being one mapping.
memories = [
    mapped(mmap.MAP_SHARED, 1), mapped(mmap.MAP_PRIVATE, 1),
    mapped(mmap.MAP_SHARED, 1), mapped(mmap.MAP_PRIVATE, 0.5),
    mapped(mmap.MAP_SHARED, 1),
]
before = [huge(each) for each in memories]
able = mapped(mmap.MAP_PRIVATE, 1)
start = ctypes.addressof(ctypes.c_char.from_buffer(able))
page = ctypes.c_void_p(start + -start % {HUGE_BYTES})
refused = ctypes.CDLL(None).madvise(page, ctypes.c_size_t({HUGE_BYTES}), 25)
settled.settle().join()
whole = all(memories[1][at] == at // 4096 % 251 + 1 for at in range(0, SIZE, 4096))
print(json.dumps([before, [huge(each) for each in memories], whole, not refused]))
"""


MESSAGES = """
import json, resource
from tandem import settled
from tandem.pool.child import memory

def message():
    return [b"x" * 500_000 for _ in range(6)]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        message()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

message()
unsettled = faults()
settled.settle().join()
message()
settled_faults, held = faults(), memory()[1]
books = [None] * 100
for place in range(100):
    books[place] = b"x" * 1_000_000
books_held = memory()[1] - held
del books
print(json.dumps([unsettled, settled_faults, books_held, memory()[1] - held]))
"""


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.promise("S5-711")
def test_memory_of_a_large_message_is_kept_for_the_next_within_a_bound() -> None:
    told = subprocess.run(
        [sys.executable, "-c", MESSAGES], capture_output=True, text=True, check=True
    )
    unsettled, settled_faults, held, left = json.loads(told.stdout)
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("this system's C library keeps what it keeps")
    assert unsettled > 1000
    assert settled_faults < 20
    assert held > 90_000_000
    assert left <= settled.MOST_KEPT + 1_000_000


@pytest.mark.promise("S5-474")
def test_memory_that_is_in_use_moves_into_huge_pages_and_no_other() -> None:
    told = subprocess.run(
        [sys.executable, "-c", SETTLING], capture_output=True, text=True, check=True
    )
    before, after, whole, able = json.loads(told.stdout)
    assert whole
    if not able:
        pytest.skip("this system gives no huge pages")
    assert after[1] >= 3 * HUGE_BYTES, "four but for what is not aligned"
    assert after[0::2] == before[0::2], "shared memory is others' too"
    assert after[3] == before[3], "half of it would be memory that nobody uses"


@pytest.mark.promise("S5-474")
def test_what_is_loaded_is_left_to_no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it runs: a system that shows no mappings has no huge pages for it."""
    monkeypatch.setattr(settled, "_MAPS", Path("/no/such/file"))
    settle().join(SECONDS)
    assert gc.get_freeze_count() > 0


@pytest.mark.promise("S5-474")
def test_what_a_system_refuses_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(page: int, size: int, advice: int) -> int:
        asked.append(page)
        assert (size, page % size) == (HUGE_BYTES, 0)
        return -1

    library = SimpleNamespace(madvise=refuse)
    monkeypatch.setattr(settled.ctypes, "CDLL", lambda name: library)
    settle().join(SECONDS)
    assert asked
    asked.clear()
    monkeypatch.setattr(settled, "MOST_PAGES", 2)
    settle().join(SECONDS)
    assert len(asked) == 2, "and no more than the bound"


def test_who_serves_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    may_move = threading.Event()

    def slow(page: int, size: int, advice: int) -> int:
        assert may_move.wait(SECONDS)
        return 0

    library = SimpleNamespace(madvise=slow)
    monkeypatch.setattr(settled.ctypes, "CDLL", lambda name: library)
    moving = settle()
    assert moving.is_alive()
    may_move.set()
    moving.join(SECONDS)
    assert not moving.is_alive()


@pytest.mark.parametrize(
    "mapping",
    [
        "7f0000100000-7f0000900000 rw-p 00000000 00:00 0 ",
        "7f0000100000-7f0000900000 rw-p 00000000 00:00 0                      [heap]",
        "7f0000100000-7f0000900000 rw-p 00000000 00:00 0    [anon:glibc: malloc arena]",
    ],
)
def test_whole_huge_pages_of_dense_memory_are_found(mapping: str) -> None:
    found = [[*pages] for pages in settled._dense(_row(mapping, 7000))]
    assert found == [[0x7F0000200000, 0x7F0000400000, 0x7F0000600000]]
    assert list(settled._dense(_row(mapping, 6000))) == []


@pytest.mark.parametrize(
    "mapping",
    [
        "7f0000100000-7f0000900000 rw-s 00000000 00:01 12      /dev/shm/kv",
        "7f0000100000-7f0000900000 r-xp 00000000 fe:00 247741      /usr/lib/libpython3.11.so",
        "7f0000100000-7f0000900000 rw-p 00000000 fe:00 247741      /usr/lib/libpython3.11.so",
        "7f0000100000-7f0000900000 rw-p 00000000 00:00 0           [stack]",
    ],
)
def test_what_is_a_file_or_shared_or_a_stack_is_not(mapping: str) -> None:
    other = _row("7e0000100000-7e0000900000 rw-p 00000000 00:00 0 ", 8192)
    assert len(list(settled._dense(_row(mapping, 8192) + other))) == 1


def _row(mapping: str, resident_kib: int) -> str:
    """As in /proc/PID/smaps."""
    return f"{mapping}\nSize:   8192 kB\nRss:   {resident_kib} kB\nPss:   9 kB\nVmFlags: rd wr\n"


def test_the_collector_rests_while_modules_are_loaded() -> None:
    """Also where that fails; and one that was switched off before stays off."""
    with settled.loading():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError), settled.loading():
        importlib.import_module("no_such_module")
    assert gc.isenabled()
    gc.disable()
    try:
        with settled.loading():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
