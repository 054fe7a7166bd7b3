"""What pages in a browser may ask of this server: CORS for origins that the operator names, and a
local server without keys that no other page can reach.

A page of any site can make its visitor's browser send requests to addresses of the visitor's own
machine, and read the answers where the page's name resolves to that address (DNS rebinding). A
server on a loopback address that asks for no key has nothing else to tell such a page by than the
name that it was called by, and that a page cannot send JSON to another origin unasked.
"""

from __future__ import annotations

import re

from tandem.sockets import is_loopback
from tandem_frontend.config import FrontendConfig
from tandem_frontend.http.errors import HostNotAllowedError, MediaTypeError
from tandem_frontend.http.messages import JSON, Call, Headers

_TOKENS = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,2048}")
_EXPOSED = (
    b"x-request-id, request-id, x-tandem-trace-id, x-tandem-ignored-fields, retry-after,"
    b" x-should-retry"
)
_REMEMBERED_SECONDS = b"600"


class Browsers:
    def __init__(self, config: FrontendConfig) -> None:
        self._origins = frozenset(origin.encode() for origin in config.cors_origins)
        """Whose pages may call, such as "https://app.example"."""
        host = config.listen.rpartition(":")[0].strip("[]").lower()
        open_to_any = config.api_keys or config.api_keys_file or "*" in config.allowed_hosts
        local = is_loopback(host) and not open_to_any
        self._local_names = frozenset(config.allowed_hosts) if local else None
        """Host names beside loopback's own, of a server without keys on a loopback address; None:
        another server, which answers to any name."""

    def check_host(self, call: Call) -> None:
        """Raises HostNotAllowedError."""
        if self._local_names is None:
            return
        host = call.header(b"host")
        name = None if host is None else _name(host.decode("latin-1"))
        if name is not None and not (is_loopback(name) or name in self._local_names):
            raise HostNotAllowedError(
                "This server answers to host names of the local machine alone; `allowed_hosts` adds"
                " others"
            )

    def check_body(self, call: Call) -> None:
        """Raises MediaTypeError where a body is not said to be JSON."""
        if self._local_names is None or call.method != "POST":
            return
        media_type = (call.header(b"content-type") or b"").partition(b";")[0]
        if media_type.strip().lower() != JSON:
            raise MediaTypeError("The body must be sent as `content-type: application/json`")

    def headers(self, call: Call) -> Headers:
        """What tells the browser that its page may read the answer."""
        if not self._origins:
            return ()
        origin = call.header(b"origin")
        if origin not in self._origins:
            return ((b"vary", b"origin"),)
        assert origin is not None
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"origin"),
        )

    def preflight(self, call: Call, method: str) -> Headers | None:
        """The answer to a browser that asks whether a page may send a request with `method`; None:
        the request is no such question, or of a page that may not.
        """
        asks = call.method == "OPTIONS" and call.header(b"access-control-request-method")
        if not asks or call.header(b"origin") not in self._origins:
            return None
        wanted = call.header(b"access-control-request-headers") or b""
        return (
            (b"access-control-allow-methods", method.encode()),
            (b"access-control-allow-headers", wanted if _TOKENS.fullmatch(wanted) else b""),
            (b"access-control-max-age", _REMEMBERED_SECONDS),
        )


def _name(host: str) -> str:
    """A Host header without its port, in lower case; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
