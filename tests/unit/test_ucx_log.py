"""What UCX wrote KV over, as its log says it. The first two tables are UCX's own, of one machine;
the others have its format, and transports that this machine lacks.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from one_case import one_case

from tandem.engine import ucx_log
from tandem.engine.ucx_log import UcxLog

SHARED_MEMORY = """\
[1795653525.262340] [vm:31132:0]   +--------+-------------+--------------------------------+
[1795653525.262340] [vm:31132:0]   | s intra-node cfg#1                                    |
[1795653525.262340] [vm:31132:0]   | memory write by ucp_put*(multi) from host memory to host |
[1795653525.262340] [vm:31132:0]   +--------+-------------+--------------------------------+
[1795653525.262340] [vm:31132:0]   | Range  | Description |             Config             |
[1795653525.262340] [vm:31132:0]   +--------+-------------+--------------------------------+
[1795653525.262340] [vm:31132:0]   | 0..inf | zero-copy   | cma/memory                     |
[1795653525.262340] [vm:31132:0]   +--------+-------------+--------------------------------+
"""
TCP = SHARED_MEMORY.replace("cma/memory                     ", "52% on tcp/lo and 48% on tcp/eth0")
RDMA = SHARED_MEMORY.replace("intra-node", "inter-node").replace(
    "| 0..inf | zero-copy   | cma/memory ",
    "| 0..2038 | short | tcp/eth0 |\n[1.0] [vm:1:0]  "
    "| 2039..inf | zero-copy | 50% on rc_mlx5/mlx5_0:1/path0 and 50% on rc_mlx5/mlx5_1:1/path0 ",
)
CUDA = SHARED_MEMORY.replace("from host memory to host", "from cuda/GPU0 to cuda").replace(
    "cma/memory", "cuda_ipc/cuda"
)
MESSAGES = SHARED_MEMORY.replace("memory write by ucp_put*(multi)", "active message").replace(
    "cma/memory", "tcp/lo"
)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> UcxLog:
    for name in ("UCX_LOG_FILE", "UCX_PROTO_INFO"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return UcxLog()


def write(text: str) -> None:
    """As UCX does, to where it is told."""
    with Path(os.environ["UCX_LOG_FILE"]).open("a") as file:
        file.write(text)


@pytest.mark.promise("S5-298")
@pytest.mark.parametrize(
    ("tables", "transport"),
    [
        ("", "unknown"),
        (SHARED_MEMORY, "shm"),
        (TCP, "tcp"),
        (RDMA, "rdma"),
        (MESSAGES, "unknown"),
        (MESSAGES + RDMA, "rdma"),
        (SHARED_MEMORY + RDMA, "rdma+shm"),
        (SHARED_MEMORY + CUDA, "cuda_ipc"),
        (SHARED_MEMORY.replace("cma", "new_kind"), "new_kind"),
    ],
)
def test_the_transport_is_what_writes_of_kv_use(log: UcxLog, tables: str, transport: str) -> None:
    write(tables)
    assert log.transport() == transport


def test_what_is_written_in_parts_is_read_once(
    log: UcxLog, capsys: pytest.CaptureFixture[str]
) -> None:
    half = len(TCP) // 2
    write(TCP[:half])
    assert log.transport() == "unknown"
    write(TCP[half:])
    assert log.transport() == "tcp"
    assert capsys.readouterr().err == ""


def test_other_lines_go_on_to_standard_error(
    log: UcxLog, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "[1795653525.1] [vm:31132:0]  select.c:650 UCX  ERROR   no active messages transport"
    write(f"{said}\n{SHARED_MEMORY}")
    assert log.transport() == "shm"
    assert capsys.readouterr().err == f"{said}\n"


def test_an_operator_s_own_log_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UCX_LOG_FILE", str(tmp_path / "own"))
    monkeypatch.setenv("UCX_PROTO_INFO", "y")
    log = UcxLog()
    write(TCP)
    assert log.transport() == "unknown"
    assert (tmp_path / "own").read_text() == TCP


def test_what_was_read_is_not_kept_for_ever(
    log: UcxLog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path(os.environ["UCX_LOG_FILE"]).open("w") as file:
        for number in range(40):
            file.write(f"{number} " + "x" * 100_000 + "\n")
            file.flush()
            log.read()
            assert os.fstat(log._file).st_blocks * 512 < 2**21
        file.write(TCP)
        file.flush()
        assert log.transport() == "tcp"
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in said] == [str(number) for number in range(40)]


@one_case(
    ("transport", "kind"),
    [
        ("rc_verbs", "rdma"),
        ("dc_mlx5", "rdma"),
        ("ud_mlx5", "rdma"),
        ("srd", "rdma"),
        ("sysv", "shm"),
        ("posix", "shm"),
        ("xpmem", "shm"),
        ("tcp", "tcp"),
        ("cuda_ipc", "cuda_ipc"),
        ("cuda_copy", "cuda_copy"),
    ],
)
def test_transports_are_named_by_their_kind(transport: str, kind: str) -> None:
    assert ucx_log.kind(transport) == kind


def test_the_log_of_a_process_that_started_this_one_is_left_to_it(
    log: UcxLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_LOG_FILE", "/proc/1/fd/9")
    own = UcxLog()
    write(SHARED_MEMORY)
    assert own.transport() == "shm"
