"""A rollout's two promises, on real processes: revisions are never paired with each other, and a
new worker is ready once a pair uses it, and from then on whatever becomes of its peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stacks import MODEL, Served, options, until

from tandem.cli.client import Client
from tandem.cli.stack import Stack

PREFILL, OLD, NEW = "prefill_worker-0", "decode_worker-0", "decode_worker-1"


class Rollout:
    """A prefill worker and two decode workers; each has a revision."""

    def __init__(self, stack: Stack, run_dir: Path) -> None:
        self.stack = stack
        self._run_dir = run_dir
        self._served = Served("sim", stack, run_dir / "no-hook")

    def status(self, component: str, path: str) -> int:
        return Client(self.stack.components[component].launch.metrics).status(path)

    def ready(self, *components: str) -> Callable[[], bool]:
        return lambda: all(self.status(each, "/ready") == 200 for each in components)

    def metric(self, component: str, name: str, **labels: str) -> float:
        return self._served.metric(component, name, **labels)

    def complete(self) -> None:
        body = {"model": MODEL, "prompt": "The for statement", "max_tokens": 4}
        assert Client(self.stack.url).post("/v1/completions", body)["choices"][0]["text"]

    def restart_prefill(self, revision: str) -> None:
        write(self._run_dir, PREFILL, revision)
        self.stack.restart(PREFILL)


def write(run_dir: Path, component: str, revision: str) -> str:
    """A settings file; answers the flag that names it."""
    path = run_dir / f"{component}.yaml"
    path.write_text(f"deployment_revision: {revision}\nready_when_paired: true\n")
    return f"--config={path}"


@pytest.mark.promise("S5-221")
def test_two_context_lengths_are_served_side_by_side(model_path: Path, tmp_path: Path) -> None:
    """A rollout that makes the context shorter: what is long goes on being answered while workers
    of the old revision are there, though most pairs are new.
    """
    components = {"prefill_worker-0": 300, "decode_worker-0": 300}
    components |= {"prefill_worker-1": 100, "decode_worker-1": 100, "decode_worker-2": 100}
    # One after the other, all would go to whichever has the lowest port.
    flags: dict[str, tuple[str, ...]] = {"router": ("--prefill-policy=round_robin",)}
    for name, context in components.items():
        path = tmp_path / f"{name}.yaml"
        settings = f"engine_options: {{context_length: {context}}}"
        path.write_text(f"deployment_revision: of {context}\n{settings}\n")
        flags[name] = (f"--config={path}",)
    both = options(
        "sim", model_path, prefill=2, decode=3, hook_prefill="", hook_decode="", flags=flags
    )
    with Stack(both, run_dir=tmp_path) as stack:
        rollout = Rollout(stack, tmp_path)
        until(rollout.ready(*components, "router", "frontend"))
        until(lambda: rollout.metric("router", "tandem_router_ready_pairs") == 3)
        client = Client(stack.url)
        body = {"model": MODEL, "prompt": "The for statement", "ignore_eos": True}
        for _ in range(6):
            usage = client.post("/v1/completions", body | {"max_tokens": 150})["usage"]
            assert usage["completion_tokens"] == 150
        legs = "tandem_worker_legs_total"
        assert rollout.metric("decode_worker-0", legs, outcome="finished") == 6
        for _ in range(6):
            client.post("/v1/completions", body | {"max_tokens": 8})
        new = [rollout.metric(f"decode_worker-{each}", legs) for each in (1, 2)]
        assert sum(new) >= 1, "what is short goes to any"


@pytest.fixture
def rollout(model_path: Path, tmp_path: Path) -> Iterator[Rollout]:
    revisions = {PREFILL: "one", OLD: "one", NEW: "two"}
    flags = {name: (write(tmp_path, name, revision),) for name, revision in revisions.items()}
    plain = options("sim", model_path, decode=2, hook_prefill="", hook_decode="", flags=flags)
    with Stack(plain, run_dir=tmp_path) as stack:
        yield Rollout(stack, tmp_path)


@pytest.mark.promise("S5-122")
def test_revisions_are_never_paired_and_readiness_waits_for_a_pair_once(rollout: Rollout) -> None:
    rejected = {"name": "tandem_router_pair_rejected_total", "reason": "deployment_revision"}
    until(rollout.ready(PREFILL, OLD, "router", "frontend"))
    until(lambda: rollout.metric("router", **rejected) == 1)
    for _ in range(4):
        rollout.complete()
    assert rollout.metric(OLD, "tandem_worker_legs_total", outcome="finished") == 4
    # The other revision's worker is well, and waits.
    assert rollout.status(NEW, "/live") == 200
    assert rollout.status(NEW, "/ready") == 503
    assert rollout.metric(NEW, "tandem_worker_ready") == 0
    assert rollout.metric(NEW, "tandem_worker_legs_total") == 0

    # Its peer comes; the old one loses its own, and stays what it was.
    rollout.stack.components[PREFILL].process.kill()
    rollout.stack.components[PREFILL].process.wait(timeout=10)
    until(lambda: rollout.metric("router", "tandem_router_ready_pairs") == 0)
    assert rollout.status(OLD, "/ready") == 200
    # Requests would wait for the next pair, so clients must still reach the frontend.
    assert rollout.status("frontend", "/ready") == 200
    rollout.restart_prefill("two")
    until(rollout.ready(PREFILL, NEW, "router", "frontend"))
    for _ in range(4):
        rollout.complete()
    assert rollout.metric(NEW, "tandem_worker_legs_total", outcome="finished") == 4
    assert rollout.metric(OLD, "tandem_worker_legs_total", outcome="finished") == 4
    assert rollout.status(OLD, "/ready") == 200
    assert rollout.status(OLD, "/live") == 200
