"""`/playground`: a page to chat with this server, of the files that stand beside this module. It
asks the API for all that it shows, as any other client does.
"""

from __future__ import annotations

from importlib import resources
from pathlib import PurePath
from typing import NamedTuple

from tandem_frontend.http.messages import Call, Headers

PATH = "/playground"
_PAGE = "page.html"
_KINDS = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_HEADERS: Headers = (
    # Only scripts that are these files run, none reaches another server, and what becomes part of
    # the page becomes it as text: a model's answer is a stranger's, and the page holds a key.
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        b" connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        b" require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


class File(NamedTuple):
    content_type: bytes
    content: bytes

    async def serve(self, call: Call) -> None:
        await call.respond(200, self.content, self.content_type, _HEADERS)


def files() -> dict[str, File]:
    """All parts of the page, by their paths on the server."""
    found = {}
    for each in resources.files(__name__).iterdir():
        if content_type := _KINDS.get(PurePath(each.name).suffix):
            path = PATH if each.name == _PAGE else f"{PATH}/{each.name}"
            found[path] = File(content_type, each.read_bytes())
    return found
