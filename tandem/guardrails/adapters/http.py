"""The one way in which adapters talk to a guardrail service: bounded in every direction, closed
when it fails, and silent about what it sends.

- The answer comes before the classifier's own timeout, or a ScoringError does.
- Redirects are not followed, TLS certificates are verified, proxies of the environment are ignored.
- Only an attempt to connect is repeated: a request that may have arrived is not sent twice.
- No header and no body is ever logged.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from tandem.errors import LoadError
from tandem.guardrails.adapters.breaker import CircuitBreaker, UnavailableError
from tandem.guardrails.adapters.credentials import ApiKey
from tandem.hooks.classifiers.contract import ScoringError

if TYPE_CHECKING:
    import httpx

MARGIN = 0.95
"""Share of a classifier's timeout that the call may take; the rest is for what comes before and
after it."""
KEEP_ALIVE_SECONDS = 4.0
"""Less than the 5 s after which common servers close, so that no request meets a closing one."""


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
    """So many failures in a row open the circuit."""
    circuit_open_ms: int = 10_000
    """So long nothing is sent; then one call is tried."""

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
        """Raises LoadError: the URL cannot be used, a file cannot be read, httpx is not there."""
        self._httpx = _import_httpx()
        self._url = _checked_url(url)
        self._key = key
        self._key_header = key_header
        self._key_prefix = key_prefix
        self._options = options
        self._breaker = CircuitBreaker(
            failures=options.circuit_failures,
            open_seconds=options.circuit_open_ms / 1000,
            clock=clock,
        )
        self._client = self._httpx.AsyncClient(
            verify=_tls(options.ca_file),
            trust_env=False,
            follow_redirects=False,
            limits=self._httpx.Limits(
                max_connections=options.max_connections,
                max_keepalive_connections=options.max_connections,
                keepalive_expiry=KEEP_ALIVE_SECONDS,
            ),
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
        seconds = timeout_ms / 1000 * MARGIN
        with self._breaker.call():
            try:
                async with asyncio.timeout(seconds):
                    answer = await self._send(body, self._headers(headers), seconds)
            except TimeoutError:
                raise UnavailableError("timeout") from None
            except self._httpx.HTTPError as error:
                self._fail(error)
            return _parse(answer)

    async def aclose(self) -> None:
        """Close all connections to the service."""
        await self._client.aclose()

    def _headers(self, more: Mapping[str, str] | None) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        headers["Accept-Encoding"] = "identity"  # so that the bound is on what is read
        if self._key.value:
            headers[self._key_header] = self._key_prefix + self._key.value
        return {**headers, **(more or {})}

    async def _send(self, body: bytes, headers: dict[str, str], seconds: float) -> bytes:
        timeout = self._httpx.Timeout(
            seconds, connect=min(seconds, self._options.connect_timeout_ms / 1000)
        )
        retries = self._options.connect_retries
        while True:
            request = self._client.stream(
                "POST", self._url, content=body, headers=headers, timeout=timeout
            )
            try:
                async with request as response:
                    self._check_status(response.status_code)
                    return await self._read(response)
            except self._httpx.ConnectError:
                if retries == 0:
                    raise
                retries -= 1

    def _check_status(self, status: int) -> None:
        if 200 <= status < 300:
            return
        if status >= 500:
            raise UnavailableError("server_error")
        if status == 429:
            raise UnavailableError("rate_limited")
        if status in (401, 403):
            self._key.reload()  # for the next call
            raise ScoringError("refused")
        raise ScoringError("redirected" if status < 400 else "http_error")

    async def _read(self, response: httpx.Response) -> bytes:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ScoringError("bad_answer")
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > self._options.max_response_bytes:
                raise ScoringError("too_large")
        return bytes(body)

    def _fail(self, error: httpx.HTTPError) -> NoReturn:
        """Without the error's own words, which name the address."""
        if isinstance(error, self._httpx.PoolTimeout):
            raise ScoringError("busy") from None
        if isinstance(error, self._httpx.ConnectError | self._httpx.ConnectTimeout):
            raise UnavailableError("unreachable") from None
        if isinstance(error, self._httpx.TimeoutException):
            raise UnavailableError("timeout") from None
        raise UnavailableError("broken_off") from None


def _parse(answer: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(answer, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ScoringError("bad_answer") from None
    if not isinstance(parsed, dict):
        raise ScoringError("bad_answer")
    return parsed


def _no_constant(_name: str) -> NoReturn:
    raise ValueError  # NaN and the infinities, which JSON does not have


def _checked_url(url: str) -> str:
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
    return url


@cache
def _tls(ca_file: str) -> ssl.SSLContext:
    """Shared, because reading the authorities takes some 20 ms."""
    if not ca_file:
        context: ssl.SSLContext = _import_httpx().create_ssl_context(trust_env=False)
        return context
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise LoadError(f"http.ca_file {ca_file} cannot be used: {error.strerror}") from error


def _import_httpx() -> Any:
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise LoadError(
            "this classifier needs httpx: install tandem-serving[guardrails]"
        ) from error
    # At their own levels they log addresses (INFO) and headers (DEBUG) of every call.
    for name in ("httpx", "httpcore"):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.WARNING))
    return httpx
