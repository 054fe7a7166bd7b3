"""A worker as a process: how it starts, drains and dies. With the sim engine, which starts at
once.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from worker_pair import END_SECONDS, ROOT, WITHOUT_FORMS, connected, launched_pair, options_flag

from tandem.v1 import worker_pb2

READY_SECONDS = 30.0
SGLANG_READY_SECONDS = 280.0


@pytest.fixture
def no_file_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of the temporary ones of processes that the test starts."""
    with TemporaryDirectory() as folder:  # whose name is short enough for those of sockets
        monkeypatch.setenv("TMPDIR", folder)
        yield
        assert [each.name for each in Path(folder).iterdir() if not each.is_dir()] == []


def _said(tmp_path: Path, *flags: str, component: str, seconds: float) -> str:
    """What a worker says that cannot start."""
    listening = ("--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0")
    ended = subprocess.run(
        [sys.executable, "-m", f"tandem_{component}", *listening, *flags],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    return ended.stderr


def _refusal(tmp_path: Path, *flags: str, component: str = "decode_worker") -> str:
    """The line that such a worker ends with, which has no traceback."""
    said = _said(tmp_path, *flags, component=component, seconds=END_SECONDS)
    assert "Traceback" not in said
    return said.splitlines()[-1]


@pytest.mark.promise("S0-002", "S0-003")
@pytest.mark.parametrize("component", ["prefill_worker", "decode_worker"])
def test_a_wrong_hook_path_stops_the_start(
    component: str, tmp_path: Path, model_path: Path
) -> None:
    said = _refusal(
        tmp_path,
        f"--model-path={model_path}",
        "--engine=sim",
        "--hook=no.Hook",
        component=component,
    )
    assert "'no.Hook': there is no module 'no'" in said


@pytest.mark.promise("S0-004")
def test_the_hook_of_the_settings_file_is_the_one_that_loads(
    tmp_path: Path, model_path: Path
) -> None:
    settings = tmp_path / "worker.yaml"
    settings.write_text(f"model_path: {model_path}\nengine: sim\nhook: tandem.errors.NoSuchHook\n")
    said = _refusal(tmp_path, f"--config={settings}")
    assert "'tandem.errors.NoSuchHook': module 'tandem.errors' has no 'NoSuchHook'" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--engine-options=speed=11",), "unknown option of the sim engine: 'speed'"),
        (("--logits-processors=mine=nowhere:Class",), "nowhere"),
        (("--listen=0.0.0.0:0",), "set advertise_host"),
        (("--listen=256.0.0.1:0", "--advertise-host=127.0.0.1"), "cannot listen on '256.0.0.1:0'"),
        (("--max-sequences=0",), "max_sequences must be at least 1"),
        (("--model-path=/nowhere",), "tokenizer"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_its_mend(
    tmp_path: Path, model_path: Path, flags: tuple[str, ...], words: str
) -> None:
    assert words in _refusal(tmp_path, f"--model-path={model_path}", "--engine=sim", *flags)


@pytest.mark.parametrize("setting", ["listen", "metrics_listen"])
def test_a_taken_address_stops_the_start(tmp_path: Path, model_path: Path, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flag = f"--{setting.replace('_', '-')}=127.0.0.1:{taken.getsockname()[1]}"
        said = _refusal(tmp_path, f"--model-path={model_path}", "--engine=sim", flag)
    assert "cannot listen on" in said


@pytest.mark.sglang
@pytest.mark.promise("S5-471")
@pytest.mark.usefixtures("no_file_is_left")
def test_an_engine_process_that_fails_at_the_start_fails_the_start_and_is_named(
    model_path: Path, tmp_path: Path
) -> None:
    """It reports that by SIGQUIT, and would be waited for, for ever."""
    spoilt = shutil.copytree(model_path, tmp_path / "model")
    for weights in spoilt.glob("*.safetensors"):
        weights.write_bytes(b"no weights")
    flags = (f"--model-path={spoilt}", "--engine=sglang", options_flag(WITHOUT_FORMS))
    said = _said(tmp_path, *flags, component="decode_worker", seconds=SGLANG_READY_SECONDS)
    assert "SGLang did not start (ChildProcessError: scheduler TP0 PP0 (process " in said
    assert re.search(r"\) failed\); .*at last:\n(.*\n)*.*SafetensorError", said)


@pytest.mark.sglang
@pytest.mark.promise("S5-453")
@pytest.mark.timeout(320)
def test_a_program_learns_what_sglang_would_change_and_keeps_its_other_children(
    model_path: Path,
) -> None:
    """SGLang would kill all of them as the program ends."""
    script = Path(__file__).with_name("failing_start.py")
    program = subprocess.run(
        [sys.executable, script, str(model_path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=SGLANG_READY_SECONDS,
        check=True,
    )
    child, _, said = program.stdout.partition(" ")
    os.kill(int(child), signal.SIGKILL)  # raises where it is dead
    changed = "SGLang changes attention_backend from 'torch_native' to 'triton'"
    assert f"{changed} (set by engine option" in said


async def test_sigterm_lets_open_sequences_finish(tmp_path: Path, model_path: Path) -> None:
    with launched_pair("sim", model_path, tmp_path, ready_seconds=READY_SECONDS) as workers:
        async with connected(workers) as pair:
            sequence = await pair.start(max_tokens=60)
            await pair.decode.until(lambda told: sequence.text)
            for worker in workers:
                worker.process.send_signal(signal.SIGTERM)
            closed = await pair.decode.closed(sequence.number)
            assert closed.outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
            assert sequence.finishes[0].completion_tokens == 60
        assert [worker.process.wait(END_SECONDS) for worker in workers] == [0, 0]


async def test_a_drain_past_its_time_ends_sequences_with_an_error(
    tmp_path: Path, model_path: Path
) -> None:
    with launched_pair(
        "sim", model_path, tmp_path, ready_seconds=READY_SECONDS, flags=["--drain-seconds=0.2"]
    ) as workers:
        async with connected(workers) as pair:
            sequence = await pair.start(max_tokens=1500)
            await pair.decode.until(lambda told: sequence.text)
            workers[1].process.send_signal(signal.SIGTERM)
            closed = await pair.decode.closed(sequence.number)
            assert closed.error.code == "worker_error"
            assert not closed.retryable
        assert workers[1].process.wait(END_SECONDS) == 0
