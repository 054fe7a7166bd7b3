"""What is refused of a frontend's settings, beside what lies outside a setting's range."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tandem import sockets
from tandem.errors import ConfigError, MissingSettingError
from tandem.hooks.classifiers import settings as classifiers
from tandem.upstream import names
from tandem_frontend.prices import Prices

if TYPE_CHECKING:
    from tandem_frontend.config import FrontendConfig

OPERATOR_PATHS = ("/metrics", "/ping")
_ORIGIN = re.compile(r"https?://[a-z0-9.\[\]:-]+")
_LEAST_KEEP_ALIVE_SECONDS = 0.01


def check(config: FrontendConfig) -> None:
    """Raises ConfigError for a value that can never serve."""
    if 0 < config.sse_keep_alive_seconds < _LEAST_KEEP_ALIVE_SECONDS:
        raise ConfigError(
            f"sse_keep_alive_seconds must be 0 or at least {_LEAST_KEEP_ALIVE_SECONDS}"
        )
    if config.max_held_bytes // 2 < config.max_body_bytes:
        raise ConfigError("max_held_bytes must be at least twice max_body_bytes")
    if config.api_keys and not any(key.strip() for key in config.api_keys):
        raise ConfigError("api_keys holds no key: give one, or leave the setting out")
    sockets.check(config.listen, setting="listen")
    sockets.check(config.metrics_listen, setting="metrics_listen")
    _check_models(config)
    _check_moderations(config)
    Prices(config.prices)
    for path in config.operator_paths:
        if path not in OPERATOR_PATHS:
            raise ConfigError(f"operator_paths takes {' and '.join(OPERATOR_PATHS)}, not {path!r}")
    for origin in config.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            raise ConfigError(f"cors_origins takes https://HOST[:PORT], not {origin!r}")
    if bool(config.https_cert) != bool(config.https_key):
        raise ConfigError("https_cert and https_key are needed together, or neither")
    names.check(config.router)


def _check_models(config: FrontendConfig) -> None:
    if not (config.model_path or config.models or config.models_folder):
        raise MissingSettingError("needs --model-path, or else --models or --models-folder")
    if not all(config.model_aliases):
        raise ConfigError("model_aliases holds an empty name")
    if config.model_aliases and not config.model_path:
        raise ConfigError("model_aliases are names of model_path's model, which is not given")
    if len(config.models) >= config.max_models:
        raise ConfigError(f"models holds {len(config.models)}; set max_models above that")


def _check_moderations(config: FrontendConfig) -> None:
    if not config.moderation_classifiers:
        return
    try:
        given = classifiers.parse(config.moderation_classifiers)
    except ConfigError as error:
        raise ConfigError(f"moderation_classifiers: {error}") from None
    if not (given.entries or given.plugins):
        raise ConfigError("moderation_classifiers: names no entries and no plugins")
