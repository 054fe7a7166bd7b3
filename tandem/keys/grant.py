"""What one key is called and allowed: a line of the key file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from tandem.errors import InvalidRequestError, NotAllowedError
from tandem.keys import MAX_NAME, MAX_WEIGHT

PLAIN_PREFIX = "api-key-"
"""Names of keys that have none begin so: those of the setting `api_keys`."""
MOST_PRIORITY = 100
_COUNT = Meta(ge=1, le=2**31 - 1)
Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=MAX_NAME)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key's name, its hashes and its limits; a limit that is left out is none.

    The limits are those of the whole deployment: each frontend holds its share of them.
    """

    name: Name
    """Other components, metrics and audit logs know its requests by it."""
    sha256: Digest | Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=8)]
    """The key's, in lower-case hex; several while one is replaced by another."""
    requests_per_minute: Annotated[int, _COUNT] | None = None
    tokens_per_minute: Annotated[int, _COUNT] | None = None
    """Prompts and answers are counted together."""
    open_requests: Annotated[int, _COUNT] | None = None
    """At once."""
    max_n: Annotated[int, _COUNT] | None = None
    max_priority: Annotated[int, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0
    """Highest `priority` of a request, of which a higher one is admitted first; where lower ones
    are, its negative is the lowest.
    """
    models: tuple[str, ...] | None = None
    """Models that requests may name; None: all."""
    logits_processors: tuple[str, ...] | None = None
    """Logits processors that requests may name, of the deployment's; none: all."""
    weight: Annotated[int, Meta(ge=1, le=MAX_WEIGHT)] = 1
    """The key's share beside other keys while requests wait."""

    @property
    def digests(self) -> tuple[str, ...]:
        return (self.sha256,) if isinstance(self.sha256, str) else self.sha256

    def check(
        self, *, n: int, priority: int, processors: Iterable[str], lower_first: bool = False
    ) -> None:
        """Raises RequestError where a request asks for what the key is not allowed. A higher
        `priority` is admitted first; with `lower_first` its client wrote the negative of it.
        """
        if self.max_n is not None and n > self.max_n:
            raise InvalidRequestError(f"`n` must not exceed {self.max_n} with this key", param="n")
        if priority > self.max_priority:
            bound = f"below {-self.max_priority}" if lower_first else f"above {self.max_priority}"
            raise NotAllowedError(f"This key is allowed no `priority` {bound}", param="priority")
        allowed = self.logits_processors
        for position, name in enumerate(processors):
            if allowed is not None and name not in allowed:
                raise NotAllowedError(
                    f"This key is not allowed the logits processor `{name}`",
                    param=f"logits_processors[{position}].name",
                )
