"""The router's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from router.policies import PolicyName
from tandem.config import load, setting
from tandem.errors import ConfigError

_AT_LEAST_ONE = ("max_queue", "max_n", "max_backlog_bytes")
_ABOVE_ZERO = (
    "default_timeout_seconds",
    "max_timeout_seconds",
    "settle_seconds",
    "pair_wait_seconds",
    "worker_silence_seconds",
)
_NOT_NEGATIVE = ("max_retries", "drain_seconds")


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """The router of Tandem: admission, pairing, relay."""

    listen: str = setting("127.0.0.1:7000", "Address to serve gRPC on.")
    metrics_listen: str = setting("127.0.0.1:7001", "Address to serve /metrics on, over HTTP.")
    prefill: tuple[str, ...] = setting((), "Addresses of the prefill workers.")
    decode: tuple[str, ...] = setting((), "Addresses of the decode workers.")
    prefill_policy: PolicyName = setting(
        "least_loaded", "How a prefill worker is chosen: round_robin or least_loaded."
    )
    decode_policy: PolicyName = setting(
        "least_loaded", "How a decode worker is chosen: round_robin or least_loaded."
    )
    max_queue: int = setting(
        1024, "Sequences that wait for a pair; one more is refused with queue_full."
    )
    max_retries: int = setting(
        1, "Further attempts of a sequence, on other pairs, while nothing of it was shown."
    )
    max_n: int = setting(128, "Largest `n` of a Generate call.")
    default_timeout_seconds: float = setting(600.0, "Deadline of a Generate call that names none.")
    max_timeout_seconds: float = setting(
        3600.0, "Longest deadline; a frontend's longer one is cut to it, a Generate call's refused."
    )
    settle_seconds: float = setting(
        10.0, "Time a worker has to close a cancelled leg; later its slot counts as overdue."
    )
    pair_wait_seconds: float = setting(
        10.0, "Time queued sequences wait for workers to come back once the last pair is gone."
    )
    worker_silence_seconds: float = setting(
        10.0, "A worker that sends nothing for this long is lost; it reports at least each second."
    )
    max_backlog_bytes: int = setting(
        64 * 1024 * 1024,
        "Output kept for a peer that does not read; past it its stream is closed and its requests"
        " are cancelled.",
    )
    drain_seconds: float = setting(
        30.0, "After SIGTERM, time that open requests have to finish; then they end with an error."
    )
    log_format: Literal["console", "json"] = setting("console", "How log lines look.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Least level logged.")

    def __post_init__(self) -> None:
        """Raises ConfigError for a value that can never serve."""
        for names, bound in ((_AT_LEAST_ONE, 1), (_NOT_NEGATIVE, 0)):
            for name in names:
                if getattr(self, name) < bound:
                    raise ConfigError(f"{name} must be at least {bound}")
        for name in _ABOVE_ZERO:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0")
        if self.default_timeout_seconds > self.max_timeout_seconds:
            raise ConfigError("default_timeout_seconds must not exceed max_timeout_seconds")
        addresses = (*self.prefill, *self.decode)
        if twice := {each for each in addresses if addresses.count(each) > 1}:
            raise ConfigError(f"workers are listed twice: {', '.join(sorted(twice))}")


def read(argv: list[str] | None = None) -> RouterConfig:
    """The settings of this process; see tandem.config.load."""
    return load(RouterConfig, prog="tandem-router", argv=argv)
