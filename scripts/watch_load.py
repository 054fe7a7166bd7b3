"""Run a sim stack under a changing load beside a Prometheus, and draw the dashboards from its data.

    python scripts/watch_load.py --minutes 8 --out docs/monitoring

A third of the time few clients, then more than there are slots, then fewer; meanwhile a decode
worker drains and comes back, some clients leave early, and prefill damages some KV cache. Needs
matplotlib; DRAW_PYTHON may name another interpreter that has it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "monitoring"))

from watching import MODEL, Prometheus, Tools, options, watching  # noqa: E402

from monitoring.generate import OUTPUT  # noqa: E402
from tandem.cli.stack import Stack  # noqa: E402
from tandem_tools.monitoring.release import fill  # noqa: E402

READY_SECONDS = 120
SCRAPE_SECONDS = 2
LOADS = ((0.35, 10), (0.35, 56), (0.3, 20))
"""Share of the time, and clients at once."""
ENGINE = (
    "step_ms=30",
    "step_ms_per_sequence=0.3",
    "prefill_base_ms=15",
    "prefill_ms_per_token=0.1",
    "kv_bytes_per_token=32768",
    "max_total_tokens=8192",
)
FORCED = {"name": "forced_sequence", "args": {"token_ids": [*range(20, 90)], "eos_token_id": 0}}
WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "on")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _stack(Path(folder)) as stack:
        stack.wait_ready(timeout_seconds=READY_SECONDS)
        rules = {path.name: fill(path.read_text()) for path in (OUTPUT / "rules").glob("*.yaml")}
        with watching(stack, _tools(), rules, Path(folder), seconds=SCRAPE_SECONDS) as prometheus:
            asyncio.run(_run(stack, 60 * settings.minutes))
            _report(prometheus)
            _draw(prometheus, settings.minutes, settings.out)


def _stack(folder: Path) -> Stack:
    os.environ["PYTHONPATH"] = str(ROOT / "tests" / "monitoring")
    plain = options(ROOT / "model" / "tandem-tiny", folder, hook="watched_code:BusyHook")
    worker = (*plain.flags["decode_worker"], "--max-sequences=24")
    faulty = (*worker, "--engine-options=" + ",".join((*ENGINE, "fault_corrupt=p:0.01")))
    whole = (*worker, "--engine-options=" + ",".join(ENGINE))
    slo = ("--slo-ttft-seconds=0.5", "--slo-itl-seconds=0.05")
    flags = {
        "frontend": (*plain.flags["frontend"], *slo),
        "prefill_worker": faulty,
        "decode_worker": whole,
    }
    return Stack(
        options(
            ROOT / "model" / "tandem-tiny",
            folder,
            hook="watched_code:BusyHook",
            prefill=2,
            decode=2,
            flags=flags,
        ),
        run_dir=folder / "stack",
    )


def _tools() -> Tools:
    done = subprocess.run(
        [ROOT / "scripts" / "set_up_prometheus.sh"], capture_output=True, text=True, check=True
    )
    folder = Path(done.stdout.strip())
    return Tools(folder / "prometheus", folder / "promtool")


async def _run(stack: Stack, seconds: float) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_rollout(stack, seconds * 0.55))
        for share, clients in LOADS:
            until = time.monotonic() + share * seconds
            async with asyncio.TaskGroup() as group:
                for seed in range(clients):
                    group.create_task(_client(stack.url, until, random.Random(seed)))


async def _rollout(stack: Stack, after: float) -> None:
    """One decode worker drains and is started again."""
    await asyncio.sleep(after)
    process = stack.components["decode_worker-1"].process
    process.terminate()
    await asyncio.to_thread(process.wait, READY_SECONDS)
    stack.restart("decode_worker-1")


async def _client(url: str, until: float, choice: random.Random) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while time.monotonic() < until:
            body: dict[str, Any] = {
                "model": MODEL,
                "prompt": " ".join(choice.choices(WORDS, k=choice.randint(20, 400))),
                "max_tokens": choice.randint(20, 200),
                "ignore_eos": True,
                "stream": True,
            }
            if choice.random() < 0.02:
                body["max_tokens"] = -1
            elif choice.random() < 0.1:
                body["logits_processors"] = [FORCED]
            leave_after = choice.randint(1, 20) if choice.random() < 0.03 else None
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                count = 0
                async for _ in answer.aiter_lines():
                    count += 1
                    if count == leave_after:
                        break


def _report(prometheus: Prometheus) -> None:
    for what in (
        "sum by (outcome) (tandem_frontend_requests_total) > 0",
        "count by (alertname, alertstate) (ALERTS)",
    ):
        for series in prometheus.query(what):
            sys.stdout.write(f"{series['metric']} {series['value'][1]}\n")


def _draw(prometheus: Prometheus, minutes: float, out: Path) -> None:
    python = os.environ.get("DRAW_PYTHON", sys.executable)
    command = [python, str(ROOT / "scripts" / "draw_dashboards.py")]
    command += [f"--prometheus={prometheus.url}", f"--minutes={minutes}", f"--out={out}"]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
