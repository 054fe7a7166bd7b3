"""User code from its building to its end: the class, built with its config, and its optional
`startup` and `shutdown`, plain or async. Waiting is bounded; a constructor, or a plain `startup`,
may take its time, because models are loaded there.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from tandem.errors import LoadError
from tandem.usercode.call import Caller, Failed

log = logging.getLogger(__name__)
STARTUP_SECONDS = 60.0
SHUTDOWN_SECONDS = 10.0
CANCEL_SECONDS = 1.0
"""For a call that was cancelled to end; one that ignores it is left behind."""


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
    instance = Caller(math.inf).call(lambda config: user_class(**config), config)
    if isinstance(instance, Failed):
        if isinstance(instance.error, LoadError):
            raise LoadError(f"{what}: {instance.error}") from instance.error
        raise LoadError(f"{what}: its constructor raised {instance.words}") from instance.error
    return instance


async def startup(what: str, instance: Any) -> None:
    """Run the instance's `startup`, if it has one. Raises LoadError."""
    failed = await _run(instance, "startup", Caller(math.inf), STARTUP_SECONDS)
    if failed is not None:
        raise LoadError(f"{what}: its startup raised {failed.words}") from failed.error


async def shutdown(what: str, instance: Any) -> None:
    """Run the instance's `shutdown`, if it has one. A failure is logged."""
    failed = await _run(instance, "shutdown", Caller(SHUTDOWN_SECONDS), SHUTDOWN_SECONDS)
    if failed is not None:
        log.warning("%s: its shutdown raised", what, extra={"reason": failed.kind})


async def _run(instance: Any, name: str, caller: Caller, seconds: float) -> Failed | None:
    """Call a method, and wait for what it returns."""
    answer = caller.call(partial(_call_method, name), instance)
    if inspect.isawaitable(answer):
        task = asyncio.get_running_loop().create_task(Caller(seconds).call_async(lambda: answer))
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds + CANCEL_SECONDS)
        finally:
            task.cancel()
        answer = task.result() if done else Failed(TimeoutError("the call took too long"))
    return answer if isinstance(answer, Failed) else None


def _call_method(name: str, instance: Any) -> Any:
    method = getattr(instance, name, None)
    return None if method is None else method()
