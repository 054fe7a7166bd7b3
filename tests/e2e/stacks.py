"""Whole stacks for tests: every process real, reached as a client would."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.engine.model_files import eos_token_ids

HERE = Path(__file__).parent
MODEL = "tandem-tiny"
SGLANG_READY_SECONDS = 280
SIM_READY_SECONDS = 60
VLLM_READY_SECONDS = 400
WITHOUT_FORMS = ('server_args={"grammar_backend":"none"}',)
"""Options of SGLang engines whose tests ask for no form of an answer: the process that compiles
forms has SGLang in memory for that.
"""
PATIENCE = 30
"""Seconds that a test waits at most for what must come, however slow the machine is."""


@dataclass
class Served:
    """A running stack with the switch hook in both phases."""

    engine: str
    stack: Stack
    hook_log: Path

    @property
    def url(self) -> str:
        return self.stack.url

    @property
    def aggregated(self) -> bool:
        """Whether one worker serves both phases, alone."""
        return self.stack.options.aggregated > 0 and not self.stack.options.prefill

    @property
    def eos_token_id(self) -> int:
        return min(eos_token_ids(self.stack.options.model_path))

    def hook_calls(self, trace_id: str) -> list[dict[str, Any]]:
        lines = self.hook_log.read_text().splitlines()
        return [call for line in lines if (call := json.loads(line))["trace_id"] == trace_id]

    def metric(self, component: str, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        launch = self.stack.components[component].launch
        with urllib.request.urlopen(f"http://{launch.metrics}/metrics", timeout=10) as response:
            text = response.read().decode()
        return metric_sum(text, name, labels)


def until(holds: Callable[[], object], what: str = "it did not come about in time") -> None:
    """Wait for what another process does; its probes and metrics are the only sign of it."""
    deadline = time.monotonic() + 2 * PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def both_prefills_routable(served: Served) -> None:
    """Wait until the router uses two prefill workers."""
    name = "tandem_router_routable_workers"
    until(lambda: served.metric("router", name, phase="prefill") == 2)


def metric_sum(text: str, name: str, labels: dict[str, str]) -> float:
    total, found = 0.0, False
    for line in text.splitlines():
        match = re.match(rf"^{name}(?:\{{(.*)\}})? (\S+)$", line)
        if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
            total, found = total + float(match[2]), True
    assert found, f"no series {name} {labels}"
    return total


def listens_at(stack: Stack) -> set[str]:
    """The addresses at which its processes, and theirs, wait for connections."""
    workers = [psutil.Process(component.pid) for component in stack.components.values()]
    everybody = [each for worker in workers for each in (worker, *worker.children(recursive=True))]
    return {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in everybody
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def options(engine: str, model_path: Path, **changes: Any) -> StackOptions:
    """A stack that allows what tests ask for, with the switch hook in both phases."""
    return StackOptions(
        **{
            "model_path": model_path,
            "engine": engine,
            "hook_prefill": "switch_hook.SwitchHook",
            "hook_decode": "switch_hook.SwitchHook",
            "flags": {
                "frontend": ("--allow-reports", "--client-logits-processors=forced_sequence")
            },
        }
        | changes
    )
