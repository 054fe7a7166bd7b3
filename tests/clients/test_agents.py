"""Coding agents as they come from npm, with a base URL and a key of ours and nothing else changed.

docs/agents.md says the same of a terminal.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

URL = os.environ["TANDEM_CLIENTS_URL"]
BIN = Path(os.environ["TANDEM_AGENTS"])
LOG = Path(os.environ["TANDEM_AGENTS_LOG"])
RUN_SECONDS = 90
SAID = "tandem-42"
QUESTION = "tandem-question: what does the shell say?"


@dataclass(frozen=True)
class Agent:
    ask: Callable[[str], Sequence[str]]
    again: Callable[[str], Sequence[str]]
    """The same, going on with the last session."""
    environment: Callable[[str], dict[str, str]]
    """Of a key."""
    files: Callable[[str], dict[str, str]] = lambda _: {}
    """Of a key, below its home."""
    names_session: bool = True
    """Its requests say which session they are of. Others are known by their prefixes alone."""


CODEX = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
CLAUDE = ("--allowedTools=Bash", "-p")
QWEN = ("--auth-type", "openai", "-y")


def codex_config(_: str) -> dict[str, str]:
    return {
        ".codex/config.toml": f"""\
model = "tandem-tiny"
model_provider = "tandem"
[model_providers.tandem]
name = "Tandem"
base_url = "{URL}/v1"
env_key = "TANDEM_KEY"
wire_api = "responses"
"""
    }


def opencode_config(key: str) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Tandem",
        "options": {"baseURL": f"{URL}/v1", "apiKey": key},
        "models": {"tandem-tiny": {"limit": {"context": 262_144, "output": 4096}}},
    }
    config = {
        "model": "tandem/tandem-tiny",
        "small_model": "tandem/tandem-tiny",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"bash": "allow"},
        "provider": {"tandem": provider},
    }
    return {".config/opencode/opencode.json": json.dumps(config)}


AGENTS = {
    "claude": Agent(
        lambda text: ("claude", *CLAUDE, text),
        lambda text: ("claude", "--continue", *CLAUDE, text),
        lambda key: {
            "ANTHROPIC_BASE_URL": URL,
            "ANTHROPIC_API_KEY": key,
            "ANTHROPIC_MODEL": "tandem-tiny",
            "ANTHROPIC_SMALL_FAST_MODEL": "tandem-tiny",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "1",
        },
    ),
    "codex": Agent(
        lambda text: ("codex", *CODEX, text),
        lambda text: ("codex", *CODEX, "resume", "--last", text),
        lambda key: {"TANDEM_KEY": key},
        codex_config,
    ),
    "opencode": Agent(
        lambda text: ("opencode", "run", text),
        lambda text: ("opencode", "run", "--continue", text),
        lambda _: {},
        opencode_config,
    ),
    "qwen-code": Agent(
        lambda text: ("qwen", *QWEN, "-p", text),
        lambda text: ("qwen", *QWEN, "--continue", "-p", text),
        lambda key: {
            "OPENAI_API_KEY": key,
            "OPENAI_BASE_URL": f"{URL}/v1",
            "OPENAI_MODEL": "tandem-tiny",
        },
        names_session=False,
    ),
}


class Terminal:
    """Where an agent is at work: a home and a project of its own."""

    def __init__(self, agent: Agent, folder: Path, key: str) -> None:
        self._agent, self._home, self.project = agent, folder / "home", folder / "project"
        self.project.mkdir(parents=True)
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._home),
            **agent.environment(key),
        }
        for name, text in agent.files(key).items():
            (self._home / name).parent.mkdir(parents=True, exist_ok=True)
            (self._home / name).write_text(text)
        self._home.mkdir(exist_ok=True)

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.project,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )


def requests() -> list[dict[str, Any]]:
    """What the server was asked so far."""
    return [json.loads(line) for line in LOG.read_text().splitlines()] if LOG.exists() else []


@pytest.mark.parametrize("name", AGENTS)
def test_tools(name: str, tmp_path: Path) -> None:
    """Two turns with a tool, then the answer."""
    asked = Asked(name, tmp_path)
    asked.run(AGENTS[name].ask)
    assert len(asked.turns) >= 3


@pytest.mark.parametrize("name", AGENTS)
def test_session(name: str, tmp_path: Path) -> None:
    """It says which it is, and what is cached of a prompt grows from turn to turn."""
    agent = AGENTS[name]
    asked = Asked(name, tmp_path)
    asked.run(agent.ask)
    once = len(asked.turns)
    asked.run(agent.again)
    assert len(asked.turns) >= once + 3
    assert len({each["session"] for each in asked.turns}) == 1
    assert bool(asked.turns[0]["session"]) is agent.names_session
    cached = [each["cached"] for each in asked.turns[1:]]
    assert cached == sorted(cached)
    assert cached[-1] > cached[0] > 0.5 * asked.turns[0]["tokens"]


class Asked:
    """An agent in a terminal of its own, and what it asks the server."""

    def __init__(self, name: str, folder: Path) -> None:
        self._terminal = Terminal(AGENTS[name], folder, "sesame")
        self._before = len(requests())

    def run(self, command: Callable[[str], Sequence[str]]) -> None:
        ran = self._terminal.run(command(QUESTION))
        assert ran.returncode == 0, ran.stdout
        assert SAID in ran.stdout

    @property
    def turns(self) -> list[dict[str, Any]]:
        return turns(requests()[self._before :])


def turns(asked: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what an agent asks beside its work, such as for a title."""
    largest = max(each["tokens"] for each in asked)
    return [each for each in asked if each["tokens"] > largest / 2]


@pytest.mark.parametrize("name", AGENTS)
def test_errors(name: str, tmp_path: Path) -> None:
    """A wrong key is said, and nothing reaches the model."""
    agent = AGENTS[name]
    before = len(requests())
    refused = Terminal(agent, tmp_path, "wrong").run(agent.ask(QUESTION))
    assert "key" in refused.stdout.lower() or "401" in refused.stdout
    assert SAID not in refused.stdout
    assert len(requests()) == before
