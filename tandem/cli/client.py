"""A small client of the frontend, on the standard library alone."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 300.0


class ApiError(Exception):
    """The frontend refused, failed, or could not be reached. `status` 0: no answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Calls one frontend; each call is a connection of its own. Raises ApiError."""

    def __init__(self, url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ApiError(f"{url!r} is no address of a frontend; write it http://127.0.0.1:8000")
        self._parts = parts
        self._timeout = timeout_seconds

    def status(self, path: str) -> int:
        """The HTTP status of a GET; 0 where nobody answers."""
        try:
            connection, response = self._send("GET", path, None)
        except ApiError:
            return 0
        connection.close()
        return response.status

    def get(self, path: str) -> Any:
        return self._whole("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._whole("POST", path, body)

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

    def _whole(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        connection, response = self._send(method, path, body)
        try:
            _raise_for_status(response)
            return json.load(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiError(f"no usable answer from {self._parts.netloc}: {error!r}") from error
        finally:
            connection.close()

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        kind = (
            http.client.HTTPSConnection
            if self._parts.scheme == "https"
            else http.client.HTTPConnection
        )
        connection = kind(self._parts.netloc, timeout=self._timeout)
        payload = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, payload, headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ApiError(f"no frontend answers at {self._parts.netloc}: {error}") from error


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
