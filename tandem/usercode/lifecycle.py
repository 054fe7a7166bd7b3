"""What hooks and classifiers have in common from their building to their end: the operator's class,
built with its config, and its optional `startup` and `shutdown`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping
from typing import Any

from tandem.errors import LoadError

log = logging.getLogger(__name__)
STARTUP_SECONDS = 60.0
SHUTDOWN_SECONDS = 10.0


def build(what: str, user_class: type[Any], config: Mapping[str, Any]) -> Any:
    """One instance, with `config` as keyword arguments. `what` names it in messages, such as
    "hook 'a.B'". Raises LoadError.
    """
    try:
        inspect.signature(user_class).bind(**config)
    except TypeError as error:
        given = f"from config {sorted(config)}" if config else "without arguments"
        raise LoadError(f"{what} cannot be built {given}: {error}") from error
    except ValueError:
        pass  # a class without a readable signature, written in C: the call decides
    try:
        return user_class(**config)
    except LoadError as error:
        raise LoadError(f"{what}: {error}") from error
    except Exception as error:
        raise LoadError(f"{what}: its constructor raised {words(error)}") from error


async def startup(what: str, instance: Any) -> None:
    """Run its own, where it has one. Raises LoadError."""
    try:
        await _run(instance, "startup", STARTUP_SECONDS)
    except Exception as error:
        raise LoadError(f"{what}: its startup raised {words(error)}") from error


async def shutdown(what: str, instance: Any) -> None:
    """Run its own, where it has one, in bounded time; a failure is logged."""
    try:
        await _run(instance, "shutdown", SHUTDOWN_SECONDS)
    except Exception as error:  # noqa: BLE001 - user code at the end of the process
        log.warning("%s: its shutdown raised", what, extra={"reason": type(error).__name__})


async def _run(instance: Any, name: str, seconds: float) -> None:
    method = getattr(instance, name, None)
    if method is None:
        return
    async with asyncio.timeout(seconds):
        result = method()
        if inspect.isawaitable(result):
            await result


def words(error: Exception) -> str:
    """Describe an error at start, where no client's text is near."""
    return f"{type(error).__name__}: {error}"
