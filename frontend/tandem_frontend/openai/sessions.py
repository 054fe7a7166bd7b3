"""What a request is a part of: the session that its headers name, or else its body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tandem_frontend.http.messages import Call
from tandem_frontend.openai.asked import Asked

_PARENT: Final = b"parent"
_TRUE: Final = (b"true", b"1")


class Sessions:
    """The headers by which clients name sessions, and say that one is over."""

    def __init__(self, headers: Sequence[str], end_headers: Sequence[str]) -> None:
        """`headers` name a request's session, the first counts; `end_headers` end the session."""
        self._headers = [name.lower().encode() for name in headers]
        self._end_headers = [name.lower().encode() for name in end_headers]
        self._all = frozenset((*self._headers, *self._end_headers))

    def of(self, call: Call, asked: Asked) -> Asked:
        """The request with the session that it belongs to. A subagent's end is not its parent's:
        the parent's session goes on, and nothing is kept for the subagent's own.
        """
        if not call.has_header(self._all):
            return asked
        ends = any(_says_true(call.header(name)) for name in self._end_headers)
        for name in self._headers:
            if value := call.header(name):
                session = value.decode("latin-1")
                asked.submit.ends_session = (ends and _PARENT not in name) or (
                    asked.submit.ends_session and session == asked.session
                )
                return msgspec.structs.replace(asked, session=session, session_is_user=False)
        if ends:
            asked.submit.ends_session = True
        return asked


def _says_true(value: bytes | None) -> bool:
    return value is not None and value.strip().lower() in _TRUE
