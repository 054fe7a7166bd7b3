"""A whole stack for a test: frontend, router, prefill and decode workers with the sim engine, each
a process, and your hook in the workers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from tandem import config
from tandem.cli.client import Client
from tandem.cli.options import model_path as known_model_path
from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.engine import model_files
from tandem.logits.spec import FORCED_SEQUENCE, forced_token_sequence
from tandem.stack_file import PERMISSIONS

READY_SECONDS = 60.0


class SimStack:
    """A running stack of frontend, router and sim workers, for a test."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.url = stack.url
        self.client = Client(stack.url)
        """Calls it; needs no other package."""
        self.model: str = self.client.get("/v1/models")["data"][0]["id"]

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI's client, with any api_key."""
        return f"{self.url}/v1"

    def saying(self, text: str) -> dict[str, Any]:
        """Fields of a request's body that make the answer this text, token by token: OpenAI's
        client takes them as `extra_body`.
        """
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        tokens = self.client.post("/tokenize", body)["tokens"]
        end = min(model_files.eos_token_ids(self.stack.options.model_path))
        entry = forced_token_sequence(tokens, end)
        return {
            "max_tokens": len(tokens) + 8,
            "logits_processors": [{"name": entry.name, "args": dict(entry.args)}],
        }

    def log(self, component: str = "decode_worker-0") -> str:
        """The log of a process: prefill_worker-0, decode_worker-0, router or frontend."""
        return self.stack.components[component].log.read_text(encoding="utf-8")


@contextmanager
def sim_stack(
    hook: type | str | None = None,
    *,
    prefill_hook: type | str | None = None,
    hooks: Mapping[str, Any] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    model_path: Path | None = None,
    run_dir: Path | None = None,
    ready_seconds: float = READY_SECONDS,
) -> Iterator[SimStack]:
    """Start a stack, wait until it serves, and stop it at the end.

    `hook`: the decode worker's, `prefill_hook`: the prefill worker's: a class of a module, or its
    import path. `hooks`: instead of both, a chain for both workers, as their settings files write
    it. `settings`: what else is in the settings file of a component, by its name: prefill_worker,
    decode_worker, router, frontend. `model_path`: a model's folder, for its tokenizer; without it,
    the model of the checkout. `run_dir`: where settings and logs stay; without it, they are
    deleted.

    Modules that this process can import by sys.path can be imported in the workers. Raises
    StackError where the stack does not start, with the end of the log that says why.
    """
    if hooks is not None and (hook is not None or prefill_hook is not None):
        raise ValueError("give hooks for a worker each, or a chain for both, not both")
    files: dict[str, dict[str, Any]] = {
        "prefill_worker": _hooks(prefill_hook, hooks),
        "decode_worker": _hooks(hook, hooks),
        "frontend": {"client_logits_processors": [FORCED_SEQUENCE]},
        "router": {},
    }
    for component, given in (settings or {}).items():
        files[component].update(given)
    for name in PERMISSIONS:
        if name in files["frontend"]:
            files["router"].setdefault(name, files["frontend"][name])
    with tempfile.TemporaryDirectory() as own_dir:
        run_dir = run_dir or Path(own_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        options = StackOptions(
            model_path=known_model_path(model_path),
            engine="sim",
            engine_options=("step_ms=0",),
            flags={name: (_written(run_dir, name, content),) for name, content in files.items()},
        )
        with (
            mock.patch.dict("os.environ", _import_path()),
            Stack(options, run_dir=run_dir) as stack,
        ):
            stack.wait_ready(timeout_seconds=ready_seconds)
            yield SimStack(stack)


def _hooks(hook: type | str | None, chain: Mapping[str, Any] | None) -> dict[str, Any]:
    if hook is not None:
        return {"hook": hook if isinstance(hook, str) else _path_of(hook)}
    return {} if chain is None else {"hooks": dict(chain)}


def _written(run_dir: Path, component: str, content: Mapping[str, Any]) -> str:
    """The flag that names a settings file with this content."""
    path = run_dir / f"{component}.yaml"
    path.write_text(yaml.safe_dump(dict(content)), encoding="utf-8")
    return f"--config={path}"


def _path_of(hook: type) -> str:
    if "<locals>" in hook.__qualname__ or hook.__module__ == "__main__":
        raise ValueError(f"{hook.__qualname__} must stand at the top of a module to be imported")
    return f"{hook.__module__}:{hook.__qualname__}"


def _import_path() -> dict[str, str]:
    """PYTHONPATH for the workers: what this process added to its own."""
    own = [place for place in sys.path if place and not place.startswith(sys.base_prefix)]
    own = [place for place in own if not place.startswith(sys.prefix)]
    before = config.environment().get("PYTHONPATH", "")
    return {
        "PYTHONPATH": os.pathsep.join(
            dict.fromkeys(filter(None, [*own, *before.split(os.pathsep)]))
        )
    }
