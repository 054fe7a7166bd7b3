"""What agents say of a request beside what it asks for, as NVIDIA Dynamo names it: hints for those
who place the request. No answer means anything else without them.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tandem.keys.grant import MOST_PRIORITY
from tandem.sampling import MAX_INT32
from tandem_frontend.openai.foreign import OF_AGENT_HINTS, OF_NVEXT, OF_SESSION_CONTROL
from tandem_frontend.openai.strangers import KnownObject

KvHints: TypeAlias = msgspec.Raw | msgspec.UnsetType
"""The field `kv_hints` as it came, to be read only where the deployment lets it pass."""


class AgentHints(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    priority: Annotated[int, Meta(ge=-MAX_INT32 - 1, le=MAX_INT32)] | None = None
    """Higher is sooner; what is beyond the range of a request's own `priority` is its end."""
    osl: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    """Tokens that each output is expected to have."""


class SessionControl(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    session_id: str
    action: Literal["open", "bind", "close"] | None = None
    """`close`: no request of the session follows. A session is open with its first request."""


class NvExt(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    agent_hints: AgentHints | None = None
    session_control: SessionControl | None = None

    @property
    def session(self) -> str:
        """The client's name for the session; empty: it names none here."""
        return self.session_control.session_id if self.session_control else ""

    @property
    def closes(self) -> bool:
        """Whether the session that it names ends with this request."""
        return self.session_control is not None and self.session_control.action == "close"

    @property
    def priority(self) -> int | None:
        """In the range of a request's own; None: nothing is said."""
        hinted = self.agent_hints.priority if self.agent_hints else None
        return None if hinted is None else max(-MOST_PRIORITY, min(hinted, MOST_PRIORITY))

    @property
    def expected_tokens(self) -> int:
        """What each output is likely to have; 0: nothing is said."""
        return (self.agent_hints.osl or 0) if self.agent_hints else 0


KIND = KnownObject.of(
    NvExt,
    OF_NVEXT,
    agent_hints=KnownObject.of(AgentHints, OF_AGENT_HINTS),
    session_control=KnownObject.of(SessionControl, OF_SESSION_CONTROL),
)
