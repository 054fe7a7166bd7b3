"""`tandem up --config`: a hook, a classifier, a processor, keys and workers out of one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from test_tandem_command import tandem

from tandem.cli import run_state

CODE = """
import asyncio
from tandem.hooks.contract import emit

class Upper:
    def __call__(self, chunk):
        return emit(chunk.text_diff.upper())

class Judge:
    name, blocking, timeout_ms = "judge", True, 10_000
    async def score(self, context):
        return {"block": "BLUEBIRD" in context.generated_text}
"""
REFUSAL = "I can't help with that."
STACK = """
engine: {type: sim, options: {step_ms: 1}}
hooks: {chain: [{path: "my_code:Upper", phases: [decode]}]}
classifiers: {hold_back: all, entries: ["my_code:Judge"]}
logitsProcessors: {say: {use: forced_sequence}}
frontend:
  config: {client_logits_processors: [say]}
  apiKeysFile: {path: KEYS}
decode: {replicas: 2}
"""


@pytest.mark.promise("S5-705")
@pytest.mark.promise("S5-707")
def test_a_file_serves_all_that_it_says_and_a_flag_beside_it_wins(tmp_path: Path) -> None:
    (tmp_path / "my_code.py").write_text(CODE)
    made = tandem("keys", "new", "acme", folder=tmp_path)
    (tmp_path / "keys.jsonl").write_text(made.stdout)
    key = made.stderr.splitlines()[1]
    stack = STACK.replace("KEYS", str(tmp_path / "keys.jsonl"))
    (tmp_path / "stack.yaml").write_text(stack)
    run_dir = tmp_path / "run"
    where = ("--config=stack.yaml", "--port=0", "--prefill=2", f"--run-dir={run_dir}", "--detach")
    started = tandem("up", *where, folder=tmp_path)
    try:
        assert started.returncode == 0, started.stderr
        assert "authorization: Bearer KEY" in started.stdout
        state = run_state.read(run_dir)
        assert state is not None
        workers = {"prefill_worker-0", "prefill_worker-1", "decode_worker-0", "decode_worker-1"}
        assert set(state.running()) == {"frontend", "router", *workers}
        assert ask(state.url, "x", "").status_code == 401
        for said, shown in (("all is well", "ALL IS WELL"), ("a bluebird", REFUSAL)):
            answer = ask(state.url, key, said)
            assert answer.status_code == 200, answer.text
            message = answer.json()["choices"][0]["message"]
            assert message["content"] == shown, answer.text
        assert tandem("up", *where, folder=tmp_path).stdout.startswith("already up")
        (tmp_path / "stack.yaml").write_text(stack + "router: {config: {max_queue: 5}}\n")
        again = tandem("up", *where, folder=tmp_path)
        assert (again.returncode, "with other options (file)" in again.stderr) == (2, True)
    finally:
        assert tandem("down", f"--run-dir={run_dir}", folder=tmp_path).returncode == 0


def ask(url: str, key: str, text: str) -> httpx.Response:
    body: dict[str, Any] = {
        "model": "tandem-tiny",
        "messages": [{"role": "user", "content": "Say it."}],
        "max_tokens": 40,
        "logits_processors": [{"name": "say", "args": {"text": text}}],
    }
    return httpx.post(
        f"{url}/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
    )


def test_a_file_that_a_component_refuses_starts_nothing_that_stays(tmp_path: Path) -> None:
    (tmp_path / "stack.yaml").write_text("engine: {type: sim}\nrouter:\n  config: {max_queue: 0}\n")
    ended = tandem("up", "--config=stack.yaml", "--port=0", "--detach", folder=tmp_path)
    assert ended.returncode == 2
    assert "stack.yaml, line 3: max_queue must be at least 1, not 0" in ended.stderr
    assert run_state.read(tmp_path / ".run") is None
