"""A sim stack that has everything to watch, and a Prometheus that watches it."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import yaml

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.free_ports import FreePorts

MODEL = "tandem-tiny"
NAMESPACE, RELEASE = "default", "tandem"
PATIENCE = 60.0
POLL_SECONDS = 0.1
STOP_SECONDS = 10.0
UNIT_TEST_SECONDS = 600
CLASSIFIERS = {
    "hold_back": "window",
    "window_tokens": 8,
    "entries": [{"path": "watched_code:Classifier", "name": "toxicity"}],
}


@dataclass(slots=True, frozen=True)
class Tools:
    prometheus: Path
    promtool: Path


def unit_test(tools: Tools, folder: Path, files: Iterable[str]) -> None:
    """Let promtool run `files`, which are tests, at once. Raises AssertionError with what it says
    of those that fail.
    """
    done = subprocess.run(
        [str(tools.promtool), "test", "rules", *files],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=UNIT_TEST_SECONDS, check=False,
    )  # fmt: skip
    said = done.stdout.split("Unit Testing: ")
    failed = "\n".join(each.strip() for each in said if "FAILED" in each)
    assert done.returncode == 0, failed or done.stdout


def options(
    model_path: Path, run_dir: Path, *, hook: str = "watched_code:Hook", **changes: Any
) -> StackOptions:
    """With hooks in a pool, an audit log, a classifier, and logits processors. A frontend without
    a pair is unready soon.
    """
    settings = run_dir / "worker.yaml"
    phrases = {"path": "banned_phrases", "name": "phrases", "config": {"phrases": ["of the sea"]}}
    sections = {
        "hooks": {"workers": 1, "chain": [{"path": hook, "name": "guard"}, phrases]},
        "classifiers": CLASSIFIERS,
        "audit": {"path": str(run_dir / "audit.jsonl")},
    }
    settings.write_text(yaml.safe_dump(sections))
    worker = (f"--config={settings}",)
    flags = {
        "frontend": ("--client-logits-processors=forced_sequence",),
        "router": ("--pair-memory-seconds=5",),
        "prefill_worker": worker,
        "decode_worker": worker,
    }
    return replace(StackOptions(model_path=model_path, engine="sim", flags=flags), **changes)


def complete(url: str, **fields: Any) -> httpx.Response:
    """A short completion."""
    body = {"model": MODEL, "prompt": "The for statement", "max_tokens": 8, "ignore_eos": True}
    return httpx.post(f"{url}/v1/completions", json=body | fields, timeout=30)


def traffic(url: str) -> None:
    """Something of everything: two answers, one forced, one refused, one ended by the hook."""
    for _ in range(2):
        complete(url).raise_for_status()
    forced = {"name": "forced_sequence", "args": {"token_ids": [20, 21], "eos_token_id": 0}}
    complete(url, ignore_eos=False, logits_processors=[forced]).raise_for_status()
    assert complete(url, max_tokens=-1).status_code == 400
    complete(url, max_tokens=30, stop=["the"]).raise_for_status()


def scrape(stack: Stack) -> str:
    """The expositions of all components, one after the other."""
    texts = []
    for component in stack.components.values():
        address = f"http://{component.launch.metrics}/metrics"
        texts.append(httpx.get(address, timeout=10).raise_for_status().text)
    return "".join(texts)


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant vector: [{"metric": labels, "value": [time, text]}, ...]."""
        result: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return result

    def alerts(self) -> dict[str, set[str]]:
        """The states of each alert that is pending or firing."""
        states: dict[str, set[str]] = {}
        for alert in self._get("alerts")["alerts"]:
            states.setdefault(alert["labels"]["alertname"], set()).add(alert["state"])
        return states

    def targets(self) -> dict[str, str]:
        """Health by pod: unknown, up or down."""
        active = self._get("targets")["activeTargets"]
        return {target["labels"]["pod"]: target["health"] for target in active}

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def until(self, holds: Callable[[], Any], what: str) -> None:
        """Ask again and again: Prometheus tells nobody. Raises AssertionError after PATIENCE."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}"
            time.sleep(POLL_SECONDS)

    def _get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as response:
            return json.load(response)["data"]


@contextmanager
def watching(
    stack: Stack, tools: Tools, rules: dict[str, str], folder: Path, *, seconds: int = 1
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes every component and evaluates the rules every `seconds`."""
    for name, text in rules.items():
        (folder / name).write_text(text)
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(_config(stack, list(rules), seconds)))
    with ExitStack() as held:
        address = FreePorts(held).address()
        command = [
            str(tools.prometheus),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--log.level=warn",
        ]
        with (folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            try:
                prometheus = Prometheus(f"http://{address}")
                prometheus.until(lambda: _answers(prometheus, process), "Prometheus is ready")
                yield prometheus
            finally:
                process.terminate()
                process.wait(STOP_SECONDS)


def _answers(prometheus: Prometheus, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "Prometheus ended"
    try:
        return httpx.get(f"{prometheus.url}/-/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _config(stack: Stack, rules: list[str], seconds: int) -> dict[str, Any]:
    """Labels as the chart's PodMonitor makes them."""
    targets = [
        {
            "targets": [component.launch.metrics],
            "labels": {"namespace": NAMESPACE, "pod": component.name},
        }
        for component in stack.components.values()
    ]
    every = f"{seconds}s"
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": rules,
        "scrape_configs": [{"job_name": RELEASE, "static_configs": targets}],
    }
