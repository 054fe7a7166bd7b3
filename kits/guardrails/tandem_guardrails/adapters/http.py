"""The one way in which adapters talk to a guardrail service: bounded in every direction, closed
when it fails, and silent about what it sends.

- The answer comes before the classifier's own timeout, or a ScoringError does.
- Redirects are not followed, TLS certificates are verified, proxies of the environment are ignored.
- Only an attempt to connect is repeated: a request that may have arrived is not sent twice.
- An answer reaches the call that asked for it alone: a connection is used again only where exactly
  one answer had come.
- No header and no body is ever logged.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NoReturn
from urllib.parse import SplitResult, quote, urlsplit

import certifi

from tandem.errors import LoadError
from tandem.hooks.classifiers.contract import ScoringError
from tandem_guardrails.adapters.breaker import CircuitBreaker, UnavailableError
from tandem_guardrails.adapters.connection import HttpAnswer
from tandem_guardrails.adapters.connections import Connections
from tandem_guardrails.adapters.credentials import ApiKey

MARGIN = 0.95
"""Share of a classifier's timeout that the call may take; the rest is for what comes before and
after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpOptions:
    """`http` in an adapter's config. `parse` checks it."""

    connect_timeout_ms: int = 1000
    connect_retries: int = 1
    """Further attempts to connect, within the timeout."""
    max_connections: int = 64
    """Open at a time; further calls wait, within their timeout."""
    max_response_bytes: int = 1024 * 1024
    ca_file: str = ""
    """PEM file of the authorities that may sign the service's certificate; empty: the usual."""
    circuit_failures: int = 5
    """How many failures in a row open the circuit."""
    circuit_open_ms: int = 10_000
    """Milliseconds for which an open circuit sends no call; then one call tries."""

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None) -> HttpOptions:
        """Raises LoadError, naming the field."""
        known = {field.name: field for field in fields(cls)}
        for name, value in (given or {}).items():
            if name not in known:
                raise LoadError(f"http has no {name}; it takes {', '.join(sorted(known))}")
            if name == "ca_file":
                if not isinstance(value, str):
                    raise LoadError(f"http.ca_file must be a path, not {value!r}")
            elif type(value) is not int or value < (0 if name == "connect_retries" else 1):
                raise LoadError(f"http.{name} must be a positive whole number, not {value!r}")
        return cls(**(given or {}))


class GuardrailClient:
    """One service, with its pool of connections and its circuit breaker."""

    def __init__(
        self,
        url: str,
        *,
        key: ApiKey,
        key_header: str = "Authorization",
        key_prefix: str = "Bearer ",
        options: HttpOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises LoadError: the URL cannot be used, a file cannot be read, h11 is not there."""
        parts = _checked_url(url)
        self._connections = _connections(parts, options)
        self._host = parts.netloc
        self._target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=-._~")
        self._key = key
        self._key_header = key_header
        self._key_prefix = key_prefix
        self._breaker = CircuitBreaker(
            failures=options.circuit_failures,
            open_seconds=options.circuit_open_ms / 1000,
            clock=clock,
        )

    async def post(
        self, body: bytes, *, timeout_ms: float, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The JSON object that the service answers to a JSON `body`. Raises ScoringError, with

        - `unreachable`, `broken_off`, `timeout`, `rate_limited`, `server_error`: the service is
          down or overloaded, and the circuit breaker counts it;
        - `circuit_open`: it has been, and nothing was sent;
        - `busy`: all connections stayed in use;
        - `refused` (401, 403), `redirected`, `http_error`: any other status than success;
        - `too_large`, `bad_answer`: an answer beyond its bound, or no JSON object.
        """
        waits = self._connections.full
        with self._breaker.call():
            try:
                async with asyncio.timeout(timeout_ms / 1000 * MARGIN):
                    async with self._connections.one() as connection:
                        waits = False
                        sent = [*self._headers(headers).items()]
                        answer = await connection.ask(self._target, sent, body)
            except TimeoutError:
                if waits:
                    raise ScoringError("busy") from None
                raise UnavailableError("timeout") from None
            self._check(answer)
            return _parse(answer.body)

    async def aclose(self) -> None:
        """Close all connections to the service."""
        self._connections.close()

    def _headers(self, more: Mapping[str, str] | None) -> dict[str, str]:
        headers = {"Host": self._host, "Content-Type": "application/json"}
        headers["Accept"] = "application/json"
        headers["Accept-Encoding"] = "identity"  # so that the bound is on what is read
        if self._key.value:
            headers[self._key_header] = self._key_prefix + self._key.value
        return {**headers, **(more or {})}

    def _check(self, answer: HttpAnswer) -> None:
        """Raises ScoringError unless it is a success."""
        status = answer.status
        if status >= 500:
            raise UnavailableError("server_error")
        if status == 429:
            raise UnavailableError("rate_limited")
        if status in (401, 403):
            self._key.reload()  # for the next call
            raise ScoringError("refused")
        if not 200 <= status < 300:
            raise ScoringError("redirected" if status < 400 else "http_error")
        if answer.encoding not in (b"", b"identity"):
            raise ScoringError("bad_answer")


def _parse(answer: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(answer, parse_constant=_no_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise ScoringError("bad_answer") from None
    if not isinstance(parsed, dict):
        raise ScoringError("bad_answer")
    return parsed


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A name that comes twice would have the verdict of the last one (RFC 8259, 4)."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _no_constant(_name: str) -> NoReturn:
    raise ValueError  # NaN and the infinities, which JSON does not have


def _connections(parts: SplitResult, options: HttpOptions) -> Connections:
    assert parts.hostname is not None
    encrypted = parts.scheme == "https"
    return Connections(
        parts.hostname,
        parts.port or (443 if encrypted else 80),
        tls=_tls(options.ca_file) if encrypted else None,
        most=options.max_connections,
        connect_seconds=options.connect_timeout_ms / 1000,
        retries=options.connect_retries,
        max_bytes=options.max_response_bytes,
    )


def _checked_url(url: str) -> SplitResult:
    """Raises LoadError, without the URL: it may hold a password."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises where it is no number
    except (ValueError, AttributeError):
        raise LoadError("url must be a text like https://host:port/path") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LoadError("url must be a text like https://host:port/path")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise LoadError("url must hold no user, password, query or fragment: use api_key_file")
    if not parts.netloc.isascii():
        raise LoadError("url must name its host in ASCII")
    return parts


@cache
def _tls(ca_file: str) -> ssl.SSLContext:
    """Shared, because reading the authorities takes some 20 ms."""
    try:
        return ssl.create_default_context(cafile=ca_file or certifi.where())
    except (OSError, ssl.SSLError) as error:
        raise LoadError(f"http.ca_file {ca_file} cannot be used: {error.strerror}") from error
