"""AIPerf: its configuration, its process, and the records that it writes, one line a request."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tandem import config
from tandem.cli import processes
from tandem.cli.console import Console
from tandem.errors import ConfigError
from tandem.orphans import die_with
from tandem_tools.bench.figures import TimedAnswer
from tandem_tools.bench.load import BenchLoad

POLL_SECONDS = 0.2
STOP_SECONDS = 20.0
"""AIPerf has so long to end what is open and to write it down."""
RECORDS = "profile_export.jsonl"
KEY_VARIABLE = "TANDEM_BENCH_KEY"
TOKENIZER = "tandem/served"
"""What the model's folder is called in the cache that AIPerf is shown."""
CUT_OFF = 499
"""AIPerf gives this code to a request that it ended itself, because it was interrupted."""


@dataclass(slots=True, frozen=True)
class BenchTarget:
    """The frontend that gets the load. `model_path` holds the tokenizer that makes prompts."""

    url: str
    model: str
    model_path: Path
    api_key: str
    timeout_seconds: float


@dataclass(slots=True)
class BenchRun:
    """`problem`: why there are no answers; "" where AIPerf ran."""

    answers: list[TimedAnswer] = field(default_factory=list)
    interrupted: bool = False
    problem: str = ""


def program() -> str:
    """AIPerf's command: the one beside this Python, or the first on the PATH. Raises ConfigError
    where there is none.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which("aiperf", path=beside) or shutil.which("aiperf")
    if found is None:
        raise ConfigError("the load is sent by AIPerf: pip install 'tandem-serving[bench]'")
    return found


def configuration(target: BenchTarget, load: BenchLoad, folder: Path) -> dict[str, Any]:
    """What AIPerf is to do. The key is in none of it: a variable holds it."""
    endpoint: dict[str, Any] = {
        "urls": [target.url],
        "type": "chat",
        "streaming": True,
        "timeout": target.timeout_seconds,
        # The frontend counts tokens as the model makes them; text does not always show them all.
        "use_server_token_count": True,
        "extra": {"ignore_eos": True},
    }
    if target.api_key:
        # As a header it stays text where it looks like a number, and `raw` keeps braces in it.
        bearer = f"{{% raw %}}Bearer ${{{KEY_VARIABLE}}}{{% endraw %}}"
        endpoint["headers"] = {"Authorization": bearer}
    return {
        "benchmark": {
            "models": [target.model],
            "endpoint": endpoint,
            "datasets": [{"name": "main", **load.dataset(folder)}],
            "phases": [{"name": "profiling", **load.phase(target.timeout_seconds)}],
            "tokenizer": {"name": TOKENIZER},
            "artifacts": {"dir": str(folder)},
            "gpu_telemetry": {"enabled": False},
            "server_metrics": {"enabled": False},
            "runtime": {"ui": "none"},
        }
    }


class RecordFile:
    """AIPerf's file of records, which grows while it runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def fresh(self) -> list[TimedAnswer]:
        """The answers that were written down since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = (answer_of(json.loads(line)) for line in whole.splitlines())
        return [answer for answer in found if answer is not None]


def answer_of(record: dict[str, Any]) -> TimedAnswer | None:
    """None for a request that AIPerf itself cut off."""
    meta, error = record["metadata"], record.get("error")
    began, ended = meta["request_start_ns"] / 1e9, meta["request_end_ns"] / 1e9
    if error is not None:
        cut_off = error.get("code") == CUT_OFF
        return None if cut_off else TimedAnswer(began, ended, failure=_failure(error))
    values = {name: metric["value"] for name, metric in record["metrics"].items()}
    return TimedAnswer(
        began,
        ended,
        output_tokens=values.get("output_sequence_length", 0),
        ttft=_seconds(values.get("time_to_first_token")),
        itl=_seconds(values.get("inter_token_latency")),
    )


def run(
    program: str, target: BenchTarget, load: BenchLoad, folder: Path, console: Console
) -> BenchRun:
    """Run AIPerf to its end, or to an interrupt, showing how far it is. `folder` takes what it
    writes; nothing of it is left running.
    """
    asked, log = folder / "bench.json", folder / "output.log"
    asked.write_text(json.dumps(configuration(target, load, folder)), encoding="utf-8")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "profile", "--config", str(asked)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=config.environment(_environment(target, folder)),
            start_new_session=True,  # Ctrl-C is for us: we ask it to end, once.
            preexec_fn=partial(die_with, os.getpid()),
        )
    leader = processes.identify(process.pid)
    outcome, records = BenchRun(), RecordFile(folder / RECORDS)
    try:
        _watch(process, records, outcome, load, console)
    except KeyboardInterrupt:
        outcome.interrupted = True
        _ask_to_end(process, console)
    finally:
        console.clear()
        if leader is not None:
            processes.end([leader], grace_seconds=0)
        status = process.wait()
    outcome.answers += records.fresh()
    outcome.problem = _problem(status, outcome, log)
    return outcome


def _environment(target: BenchTarget, folder: Path) -> dict[str, str]:
    """The key, and the tokenizer as a model hub's cache would hold it: some of AIPerf's processes
    never look into a plain folder, and a hub is never asked.
    """
    cache = folder / "hub"
    cached = cache / f"models--{TOKENIZER.replace('/', '--')}"
    for part in ("refs", "snapshots"):
        (cached / part).mkdir(parents=True)
    (cached / "refs" / "main").write_text("given", encoding="utf-8")
    (cached / "snapshots" / "given").symlink_to(target.model_path)
    return {
        KEY_VARIABLE: target.api_key,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1",
    }


def _watch(
    process: subprocess.Popen[bytes],
    records: RecordFile,
    outcome: BenchRun,
    load: BenchLoad,
    console: Console,
) -> None:
    began, first = time.monotonic(), 0.0
    of = f"/{load.expected}" if load.expected else ""
    while process.poll() is None:
        outcome.answers += records.fresh()
        if not (done := len(outcome.answers)):
            console.live("AIPerf makes prompts", time.monotonic() - began)
        else:
            # From the first answer on: what AIPerf took to start says nothing of the rest.
            seconds = time.monotonic() - (first := first or time.monotonic() - POLL_SECONDS)
            failed = sum(bool(answer.failure) for answer in outcome.answers)
            told = f", {failed} failed" if failed else ""
            share = done / load.expected if load.expected else seconds / load.seconds
            console.live(f"{done}{of} requests{told}", seconds, share=min(1.0, share))
        time.sleep(POLL_SECONDS)


def _ask_to_end(process: subprocess.Popen[bytes], console: Console) -> None:
    """An interrupt makes AIPerf write down what it has; another one ends the wait for that."""
    console.line("interrupted: here is what came until then (Ctrl-C again does not wait for all)")
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(STOP_SECONDS)


def _problem(status: int, outcome: BenchRun, log: Path) -> str:
    """AIPerf ends with a status of its own where every request failed: that is no problem here."""
    if outcome.interrupted or not status or outcome.answers:
        return ""
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    plain = [text for line in said if (text := line.strip(" │╭╮╰╯─"))]
    errors = [text for text in plain if " ERROR " in text] or plain[-3:] or ["it said nothing"]
    return f"AIPerf failed with status {status}: {errors[0]}"


def _failure(error: dict[str, Any]) -> str:
    """The status and the frontend's code, or what else AIPerf calls it."""
    status = str(error.get("code") or error.get("type") or "unknown")
    try:
        code = json.loads(error["message"])["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return status
    # Somebody else's text is no command to a terminal.
    return f"{status} {code}" if isinstance(code, str) and code.isidentifier() else status


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
