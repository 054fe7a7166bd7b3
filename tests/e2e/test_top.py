"""`tandem top` on a terminal, of a real stack that answers requests."""

from __future__ import annotations

import re

import httpx
import pytest
from stacks import MODEL, Served
from terminals import TerminalCommand, on_terminal


def workers_of(screen: str) -> list[str]:
    return re.findall(r"^((?:prefill|decode)_worker-\d)", screen, re.MULTILINE)


@pytest.mark.promise("S5-748")
@pytest.mark.promise("S5-751")
def test_a_stack_is_watched_sorted_paused_and_left_on_a_terminal(sim: Served) -> None:
    ports = {name: each.launch.metrics for name, each in sim.stack.components.items()}
    kinds = {
        kind: ",".join(port for name, port in ports.items() if kind in name)
        for kind in ("router", "worker", "frontend")
    }
    flags = (f"--{kind}s={listed}" for kind, listed in kinds.items())
    with on_terminal("top", *flags, "--interval=0.3") as terminal:
        screen = terminal.until("decode_worker-0", f"{MODEL}", "SLO 2 s", "0/1024")
        assert "every 0.3 s" in screen
        assert set(workers_of(screen)) == {name for name in ports if "worker" in name}
        assert max(map(len, screen.splitlines())) <= 80
        assert len(screen.splitlines()) <= 24
        _ask(sim)
        terminal.until("TTFT  p50", "goodput", "(100.0%)")
        _sort_by_name(terminal)
        terminal.press("p")
        terminal.until("PAUSED")
        terminal.size(200, 50)
        terminal.until("PAUSED", "address", "retries")
        terminal.press("p")
        terminal.size(44, 16)
        terminal.until("by name", "slots")
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.is_as_before()


def _ask(sim: Served) -> None:
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 8, "ignore_eos": True}
    response = httpx.post(f"{sim.url}/v1/completions", json=body, timeout=60)
    response.raise_for_status()


def _sort_by_name(terminal: TerminalCommand) -> None:
    terminal.press("s")
    names = workers_of(terminal.until("by name"))
    assert names == sorted(names)
    terminal.press("r")
    names = workers_of(terminal.until("name▼"))
    assert names == sorted(names, reverse=True)
