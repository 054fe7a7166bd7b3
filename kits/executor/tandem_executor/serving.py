"""What an executor's requests run on: a router elsewhere, or engines of the executor's own.

A router is meant by "host:port", several by addresses with commas between them or by
"dns://host:port", a model by its folder. What runs a model here is composed of several components,
which lie above this package: it is found by its name, and only then imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.errors import ConfigError, StartError, TandemError, UnsupportedError
from tandem.hooks.classifiers.contract import ExternalClassifierHook
from tandem_executor.config import ExecutorConfig
from tandem_executor.live import ELSEWHERE, LiveCode, LoopOf

if TYPE_CHECKING:
    from tandem_executor.local.stack import LocalStack

_ADDRESS = re.compile(r"(?:dns://)?(?:\[[0-9A-Fa-f:.%]+\]|[^\s/\\:\[\]]+):([0-9]{1,5})")
_MODEL_FILE = "config.json"
_REGISTER = "register_external_classifier_hook"
_MOST_SHOWN = 200
"""Characters of what is no address and no folder, in the error that says so."""


class OtherStack:
    """A router that others run. LocalStack has the same face."""

    refused = ELSEWHERE
    """Arguments of requests and configurations that are not offered here, and why."""
    own = False
    """Whether the engines are the executor's own."""

    def __init__(self, address: str) -> None:
        self._address = address

    def start(self) -> str:
        """Returns the router's address, once the router is there. Raises StartError."""
        return self._address

    def register_external_classifier_hook(self, hook: ExternalClassifierHook, loop: LoopOf) -> None:
        """As Executor does. `loop`: where the hook is awaited; None: on that of the engines. Raises
        UnsupportedError: the engines are not in the program's process.
        """
        raise UnsupportedError(
            f"{_REGISTER}: an object cannot leave its process: name its class to the workers, in"
            " `classifiers` of their settings",
            param=_REGISTER,
        )

    def close(self) -> None:
        """Stop what `start` started. May be called twice, and in any thread."""


def serving(
    where: str | bytes | os.PathLike[str],
    executor_config: ExecutorConfig,
    live: LiveCode,
    on_death: Callable[[TandemError], object],
) -> OtherStack | LocalStack:
    """What serves "host:port", or the model of a folder. `on_death` is told, in another thread, why
    engines of the executor's own run nothing any more.

    Raises ConfigError where `where` is neither, or the configuration is for the other, and
    StartError where a package is missing.
    """
    if isinstance(where, bytes):
        where = os.fsdecode(where)
    if _is_router(where):
        _check_remote(executor_config)
        return OtherStack(str(where))
    if executor_config.tls_cert:
        raise ConfigError("tls_cert is for a router elsewhere: an executor's own needs none")
    if executor_config.resume:
        raise ConfigError("resume is for a router elsewhere: an executor's own has no other pair")
    try:
        from tandem_executor.local.stack import LocalStack
    except ModuleNotFoundError as error:
        raise StartError(
            f"engines of one's own need {error.name!r}, which is not installed:"
            " pip install tandem-serving"
        ) from error
    made = LocalStack(Path(where), executor_config, live=live, on_death=on_death)
    _check_offered(executor_config, made.refused)
    return made


def _is_router(where: str | os.PathLike[str]) -> bool:
    """False: it is a model's folder. Raises ConfigError for what is neither."""
    if isinstance(where, str):
        found = [_ADDRESS.fullmatch(each) for each in where.split(",")]
        if all(each is not None and 0 < int(each[1]) < 65_536 for each in found):
            return True
    with suppress(TypeError, ValueError, OSError):  # of what is no path at all
        if (Path(where) / _MODEL_FILE).is_file():
            return False
    raise ConfigError(
        f"{_shown(where)} is neither a router's address, host:port, nor a model's folder: "
        f"there is no {_MODEL_FILE} in it"
    )


def _shown(where: object) -> str:
    """As in an error: the buffer of an engine would be gigabytes of it."""
    shown = repr(where[:_MOST_SHOWN] if isinstance(where, str) else where)
    return shown if len(shown) <= _MOST_SHOWN + 2 else f"{shown[:_MOST_SHOWN]}…"


def _check_remote(executor_config: ExecutorConfig) -> None:
    """Raises UnsupportedError for what only engines of the executor's own can have."""
    for name in ("disaggregated", "engine_options", "worker_settings"):
        if getattr(executor_config, name):
            raise UnsupportedError(
                f"ExecutorConfig.{name} is for a model's folder: a router's workers have settings"
                " of their own",
                param=name,
            )
    _check_offered(executor_config, ELSEWHERE)


def _check_offered(executor_config: ExecutorConfig, refused: Mapping[str, str]) -> None:
    """Raises UnsupportedError, naming the argument."""
    for name, reason in refused.items():
        if getattr(executor_config, name, None) is not None:
            raise UnsupportedError(f"ExecutorConfig.{name}: {reason}", param=name)
