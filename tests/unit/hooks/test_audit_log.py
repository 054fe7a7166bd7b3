"""The audit log says who decided what, keeps content to itself, and never stops the token path."""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import HookError
from tandem.hooks.audit import AuditLog, Decided, file, log, parse

SECRET = "the secret word"
KEY = b"0123456789abcdef"
DECISION: dict[str, Any] = {
    "phase": "decode",
    "trace_id": "ab" * 16,
    "request_id": 7,
    "output_index": 1,
    "tenant": "acme",
    "hook": "guard",
    "decision": "rewrite",
    "reason": "",
    "text_before": SECRET,
    "text_after": "the *** word",
    "token_count": 12,
}


def make(path: Path, **given: Any) -> AuditLog:
    settings = parse({"path": str(path), **given})
    assert settings is not None
    return AuditLog(settings, worker="decode-0", model="m")


def write(path: Path, *changes: dict[str, Any], **given: Any) -> list[dict[str, Any]]:
    """Record decisions, close, and read the file."""
    audit = make(path, **given)
    audit.start()
    for change in changes:
        audit.record(Decided(**(DECISION | change)))
    audit.close()
    assert (audit.written, audit.dropped, audit.errors) == (len(read(path)), 0, 0)
    return read(path)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY + b"\n")
    return path


def digest(text: str) -> str:
    return hmac.digest(KEY, text.encode(), "sha256").hex()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "GATHER_SECONDS", 0.001)
    monkeypatch.setattr(log, "RETRY_SECONDS", 0.01)


@pytest.mark.promise("S6-156")
def test_a_line_says_who_decided_what_when_without_the_content(path: Path, key_file: Path) -> None:
    before = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    (line,) = write(path, {}, key_file=str(key_file))
    at = line.pop("time")
    assert before <= at <= time.strftime("%Y-%m-%dT%H:%M:%S.999Z", time.gmtime())
    assert len(at) == len("2026-11-21T14:18:37.453Z")
    assert line == {
        "phase": "decode",
        "worker": "decode-0",
        "model": "m",
        "trace_id": "ab" * 16,
        "request_id": 7,
        "output_index": 1,
        "tenant": "acme",
        "hook": "guard",
        "decision": "rewrite",
        "reason": "",
        "tokens": 12,
        "before": {"characters": 15, "hmac_sha256": digest(SECRET)},
        "after": {"characters": 12, "hmac_sha256": digest("the *** word")},
    }
    assert "secret" not in path.read_text()


@pytest.mark.promise("S5-416")
def test_a_line_names_the_lora_adapter_that_wrote(path: Path) -> None:
    first, second = write(path, {"lora_adapter": "sql"}, {})
    assert first["lora_adapter"] == "sql"
    assert "lora_adapter" not in second


def test_what_is_not_shown_has_no_after(path: Path) -> None:
    (line,) = write(path, {"decision": "terminate", "reason": "banned", "text_after": None})
    assert (line["decision"], line["reason"], line["after"]) == ("terminate", "banned", None)


def test_without_a_key_of_ones_own_digests_are_equal_only_within_a_start(
    path: Path, tmp_path: Path
) -> None:
    first, second = write(path, {}, {})
    (other,) = write(tmp_path / "other.jsonl", {})
    assert first["before"] == second["before"] != other["before"]
    assert hashlib.sha256(SECRET.encode()).hexdigest() not in path.read_text()


def test_without_content_only_lengths_are_written(path: Path) -> None:
    (line,) = write(path, {}, content="none")
    assert (line["before"], line["after"]) == ({"characters": 15}, {"characters": 12})


def test_full_content_is_written_where_asked_for_and_warned_of(
    path: Path, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = "x" * 9000
    changes = ({"text_after": "a\ud800b ☃"}, {"text_before": long})
    first, second = write(path, *changes, content="full", key_file=str(key_file))
    assert first["before"] == {"characters": 15, "text": SECRET}
    assert first["after"] == {"characters": 5, "text": "a?b ☃"}
    assert second["before"] == {"characters": 9000, "hmac_sha256": digest(long)}
    (warning,) = caplog.messages
    assert "audit.content is full" in warning


def test_unchanged_chunks_are_written_only_where_asked_for(path: Path, tmp_path: Path) -> None:
    passes = ({"decision": "emit"}, {"decision": "shadow:emit"})
    shadow = {"decision": "shadow:terminate"}
    assert [line["decision"] for line in write(path, *passes, shadow)] == ["shadow:terminate"]
    assert len(write(tmp_path / "all.jsonl", *passes, shadow, passes=True)) == 3


@pytest.mark.promise("S6-156")
def test_the_file_is_for_its_owner_alone_even_if_it_was_not(path: Path) -> None:
    path.touch(mode=0o644)
    write(path, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_files_are_rotated_and_bounded(path: Path, tmp_path: Path) -> None:
    audit = make(path, max_bytes=131_072, files=3)
    audit.start()
    for number in range(2000):
        audit.record(Decided(**DECISION | {"request_id": number}))
    audit.close()
    assert (audit.written, audit.dropped) == (2000, 0)
    names = ["audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"]
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    assert all((tmp_path / name).stat().st_size <= 131_072 for name in names)
    assert all(stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600 for name in names)
    kept = [line["request_id"] for name in names for line in read(tmp_path / name)]
    assert kept == list(range(2000 - len(kept), 2000))
    assert len(kept) > 600


def test_a_single_file_is_begun_again_at_its_bound(path: Path, tmp_path: Path) -> None:
    audit = make(path, max_bytes=131_072, files=1)
    audit.start()
    for number in range(1000):
        audit.record(Decided(**DECISION | {"request_id": number}))
    audit.close()
    assert os.listdir(tmp_path) == ["audit.jsonl"]
    assert read(path)[-1]["request_id"] == 999
    assert path.stat().st_size <= 131_072


_WRITER = """
import sys
from tandem.hooks.audit import AuditLog, Decided, parse
audit = AuditLog(parse({"path": sys.argv[1], "max_bytes": 131072, "files": 50}),
                 worker=sys.argv[2], model="m")
audit.start()
print("ready", flush=True)
sys.stdin.readline()
for number in range(3000):
    audit.record(Decided(phase="decode", trace_id="t", request_id=number, output_index=0, hook="h",
                         decision="suppress", text_before="x", text_after=None, token_count=1))
audit.close()
assert (audit.written, audit.dropped) == (3000, 0), (audit.written, audit.dropped, audit.errors)
"""


def test_processes_that_share_a_file_lose_and_mix_nothing(path: Path, tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in ("a", "b")
    ]
    assert [writer.stdout.readline() for writer in writers if writer.stdout] == [b"ready\n"] * 2
    for writer in writers:
        assert writer.stdin
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
    assert [writer.returncode for writer in writers] == [0, 0]
    lines = [line for each in tmp_path.iterdir() for line in read(each)]
    assert len({(line["worker"], line["request_id"]) for line in lines}) == len(lines) == 6000
    assert all(each.stat().st_size <= 131_072 for each in tmp_path.iterdir())


def test_a_full_queue_drops_and_counts_and_the_log_says_so(path: Path) -> None:
    audit = make(path)
    for _ in range(log.MAX_RECORDS + 5):  # nobody writes yet
        audit.record(Decided(**DECISION))
    assert audit.dropped == 5
    audit.start()
    audit.close()
    lost = [line for line in read(path) if line["decision"] == "lost"]
    assert [line["count"] for line in lost] == [5]
    assert audit.written == log.MAX_RECORDS + 1


def test_a_queue_full_of_text_is_full(path: Path) -> None:
    audit = make(path)
    large = "x" * (log.MAX_CHARACTERS // 2)
    for _ in range(3):
        audit.record(Decided(**DECISION | {"text_before": large, "text_after": None}))
    assert audit.dropped == 1


def test_a_full_queue_fails_the_request_where_asked_for(path: Path) -> None:
    audit = make(path, on_full="fail")
    for _ in range(log.MAX_RECORDS):
        audit.record(Decided(**DECISION))
    with pytest.raises(HookError, match="the audit log takes no more records"):
        audit.record(Decided(**DECISION))
    assert audit.dropped == 0


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that takes half of each write and refuses the rest, until the event is set."""
    freed = threading.Event()
    real_write = os.write

    def disk(fd: int, data: bytes) -> int:
        if freed.is_set():
            return real_write(fd, data)
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, data[: len(data) // 2])

    monkeypatch.setattr(file.os, "write", disk)
    yield freed
    freed.set()


@pytest.mark.usefixtures("impatient")
def test_a_full_disk_is_survived_said_once_and_made_up_for(
    path: Path, full_disk: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    audit = make(path)
    audit.start()
    audit.record(Decided(**DECISION))
    eventually(lambda: audit.errors >= 3)
    assert path.read_bytes() == b""  # no half lines
    audit.record(Decided(**DECISION))
    full_disk.set()
    audit.close()
    assert len(read(path)) == 2
    assert (audit.written, audit.dropped) == (2, 0)
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert (record.message, record.reason) == (  # type: ignore[attr-defined]
        "the audit log cannot be written",
        "No space left on device",
    )


@pytest.mark.usefixtures("impatient", "full_disk")
def test_what_a_full_disk_never_took_is_counted_at_the_end(path: Path) -> None:
    audit = make(path)
    audit.start()
    for _ in range(3):
        audit.record(Decided(**DECISION))
    audit.close()
    audit.close()
    assert (audit.written, audit.dropped) == (0, 3)


@pytest.mark.usefixtures("impatient")
def test_a_folder_that_vanishes_and_comes_back_costs_nothing(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "audit.jsonl"
    audit = make(path)
    audit.start()
    path.unlink()
    folder.rmdir()
    audit.record(Decided(**DECISION))
    eventually(lambda: audit.errors > 0)
    folder.mkdir()
    eventually(lambda: audit.written == 1)
    audit.close()
    assert len(read(path)) == 1


@pytest.mark.usefixtures("impatient")
def test_a_disk_that_hangs_does_not_keep_the_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, freed = threading.Event(), threading.Event()

    def disk(_fd: int, data: bytes) -> int:
        hung.set()
        assert freed.wait(30)
        return len(data)

    monkeypatch.setattr(file.os, "write", disk)
    monkeypatch.setattr(log, "CLOSE_SECONDS", 0.05)
    audit = make(path)
    audit.start()
    audit.record(Decided(**DECISION))
    assert hung.wait(10)
    audit.close()
    assert not freed.is_set(), "the disk hangs on"
    assert audit.dropped == 1
    freed.set()
    audit._thread.join(10)
    assert not audit._thread.is_alive()


def test_a_record_costs_less_than_three_microseconds(path: Path) -> None:
    """The best of many rounds: what else runs on the machine is not the log's doing."""
    audit = make(path)
    audit.start()
    best = float("inf")
    for _ in range(30):
        began = time.perf_counter()
        for _ in range(200):
            audit.record(Decided(**DECISION))
        best = min(best, (time.perf_counter() - began) / 200)
    audit.close()
    assert best < 3e-6
