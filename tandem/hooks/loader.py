"""Builds the hook that a worker's settings name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tandem.errors import LoadError
from tandem.hooks.contract import Hook
from tandem.usercode import lifecycle
from tandem.usercode.loader import load_object

READY: dict[str, str] = {
    "banned_phrases": "tandem.guardrails.banned_phrases:BannedPhrases",
    "json_only": "tandem.guardrails.json_only:JsonOnly",
    "max_output": "tandem.guardrails.max_output:MaxOutput",
    "patterns": "tandem.guardrails.patterns:Patterns",
    "pii": "tandem.guardrails.pii:Pii",
    "secrets": "tandem.guardrails.secrets:Secrets",
}
"""Short names of the ready-made hooks -> import path."""


def load_hook(path: str, config: Mapping[str, Any] | None = None) -> Hook:
    """One instance of the hook class at `path`, made with `config` as keyword arguments, without
    any as a rule (S0-001, S0-002, S0-003). A path without dots names a ready-made hook.

    Raises LoadError, which names the path and what is wrong with it.
    """
    hook_class = load_object(READY.get(path, path))
    if not isinstance(hook_class, type):
        raise LoadError(f"hook {path!r} is a {type(hook_class).__name__}, not a class")
    instance = lifecycle.build(f"hook {path!r}", hook_class, config or {})
    if not callable(instance):
        raise LoadError(
            f"hook {path!r} is not callable: give the class a method __call__(self, chunk)"
        )
    if inspect.isasyncgenfunction(type(instance).__call__):
        raise LoadError(f"hook {path!r}: its __call__ is a generator; it must return one verdict")
    _check_signature(path, instance)
    hook: Hook = instance
    return hook


def is_async(instance: Any) -> bool:
    """Whether its __call__ is `async def`."""
    return inspect.iscoroutinefunction(type(instance).__call__)


def _check_signature(path: str, instance: Any) -> None:
    try:
        inspect.signature(instance).bind(None)
    except TypeError as error:
        raise LoadError(
            f"hook {path!r}: its __call__ must take the chunk alone: {error}"
        ) from error
    except ValueError:
        pass  # no readable signature: the first call decides, and fails closed
