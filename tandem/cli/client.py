"""A small client of the frontend, on the standard library alone."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tandem.errors import ConfigError

TIMEOUT_SECONDS = 300.0
LOOKUP_SECONDS = 10.0
"""A name server that has no answer at the moment is asked again for so long."""


class ApiError(Exception):
    """The frontend refused, failed, or could not be reached. `status` 0: no answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Calls one frontend; each call is a connection of its own. Raises ApiError.

    `api_key`: sent as a bearer token. `ca_file`: PEM certificates to trust, instead of the
    system's; ConfigError where it cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        api_key: str = "",
        ca_file: Path | None = None,
    ) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ApiError(f"{url!r} is no address of a frontend; write it http://127.0.0.1:8000")
        self._parts = parts
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")  # as a base URL is written
        self._timeout = timeout_seconds
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._tls = _tls(ca_file) if parts.scheme == "https" else None

    def status(self, path: str) -> int:
        """The HTTP status of a GET; 0 where nobody answers."""
        try:
            connection, response = self._send("GET", path, None)
        except ApiError:
            return 0
        connection.close()
        return response.status

    def get(self, path: str) -> Any:
        return _json(self._whole("GET", path, None), self._parts.netloc)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return _json(self._whole("POST", path, body), self._parts.netloc)

    def text(self, path: str) -> str:
        """The body that a GET is answered with, unchanged."""
        return self._whole("GET", path, None).decode(errors="replace")

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer, up to [DONE]. An error event, or an end without [DONE],
        raises.
        """
        connection, response = self._send("POST", path, {**body, "stream": True})
        try:
            _raise_for_status(response)
            yield from _events(response)
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(f"the stream broke: {error!r}") from error
        finally:
            connection.close()

    def _whole(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        connection, response = self._send(method, path, body)
        try:
            _raise_for_status(response)
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(f"no usable answer from {self._parts.netloc}: {error!r}") from error
        finally:
            response.close()  # where it ends with its connection, only it holds the socket
            connection.close()

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._connection()
        payload = None if body is None else json.dumps(body).encode()
        headers = dict(self._headers)
        if payload is not None:
            headers["content-type"] = "application/json"
        try:
            self._connect(connection)
            connection.request(method, self._prefix + path, payload, headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ApiError(f"nobody answers at {self._parts.netloc}: {error}") from error

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        """Ask for the address again where nobody could tell it just now, as under load."""
        until = time.monotonic() + LOOKUP_SECONDS
        while True:
            try:
                return connection.connect()
            except socket.gaierror as error:
                if error.errno != socket.EAI_AGAIN or time.monotonic() >= until:
                    raise
            time.sleep(LOOKUP_SECONDS / 20)

    def _connection(self) -> http.client.HTTPConnection:
        netloc, timeout = self._parts.netloc, self._timeout
        if self._tls is None:
            return http.client.HTTPConnection(netloc, timeout=timeout)
        return http.client.HTTPSConnection(netloc, timeout=timeout, context=self._tls)


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigError(f"cannot read certificates from {ca_file}: {error}") from error


def _json(body: bytes, where: str) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise ApiError(f"no usable answer from {where}: {error!r}") from error


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        kind, _, data = line.decode().strip().partition(": ")
        if kind != "data":
            continue
        if data == "[DONE]":
            return
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            raise ApiError(_message(event), status=response.status)
        yield event
    raise ApiError("the stream ended before [DONE]", status=response.status)


def _raise_for_status(response: http.client.HTTPResponse) -> None:
    if response.status < 400:
        return
    text = response.read().decode(errors="replace")
    try:
        message = _message(json.loads(text))
    except ValueError:
        message = text.strip() or response.reason
    raise ApiError(f"{response.status}: {message}", status=response.status)


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message", error)) if isinstance(error, dict) else json.dumps(body)
