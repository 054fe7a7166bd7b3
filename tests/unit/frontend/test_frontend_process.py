"""The frontend as a process, and what of it no request shows."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import Start, say_hello

from tandem.errors import ConfigError
from tandem_frontend import lifecycle
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.preprocessor import Preprocessor

ROOT = Path(__file__).parents[3]


async def test_sigterm_ends_the_process_in_order(model_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tandem_frontend",
        *("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"),
        *("--router", "127.0.0.1:1", "--log-format", "json"),
        *("--model-path", str(model_path)),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while json.loads(await process.stderr.readline())["message"] != "serving":
            pass
        process.send_signal(signal.SIGTERM)
        rest = await process.stderr.read()
        assert await process.wait() == 0
    assert b"draining" in rest
    assert b"Traceback" not in rest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model-path"),
        (["--model-path", "/nowhere"], "/nowhere"),
        (["--model-path", "model/tandem-tiny", "--max-n", "0"], "max_n must be above 0"),
    ],
)
def test_what_cannot_start_says_why_and_exits_with_2(arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tandem_frontend", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("setting", ["listen", "metrics_listen"])
async def test_a_taken_address_stops_the_start(
    start: Start, model_path: Path, setting: str
) -> None:
    frontend = await start(say_hello)
    addresses: dict[str, Any] = {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"}
    addresses[setting] = f"127.0.0.1:{frontend.port}"
    config = FrontendConfig(**addresses, model_path=str(model_path), drain_seconds=0.0)
    with pytest.raises(ConfigError, match=rf"cannot listen on .* \({setting}\)"):
        await lifecycle.serve(config, asyncio.Event())


def test_a_negative_drain_is_refused() -> None:
    with pytest.raises(ConfigError, match="drain_seconds"):
        FrontendConfig(model_path="x", drain_seconds=-1)


async def test_a_fault_of_ours_is_a_500_and_ends_only_its_request(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object, **named: object) -> None:
        raise ZeroDivisionError("a fault")

    frontend = await start(say_hello)
    with monkeypatch.context() as patch:
        patch.setattr(Preprocessor, "submission", broken)
        response = await frontend.complete()
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "a fault" not in response.text
    assert any(record.exc_info for record in caplog.records)
    assert (await frontend.complete()).status_code == 200
