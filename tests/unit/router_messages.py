"""What a frontend reads of the messages that a router hands out as bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tandem.v1 import router_pb2
from tandem_router.links import FrontendLink


def told(link: FrontendLink) -> router_pb2.RouterMessage | None:
    """The next message; None: nothing waits."""
    written = link._take()
    return None if written is None else router_pb2.RouterMessage.FromString(written)


async def messages(link: FrontendLink) -> AsyncIterator[router_pb2.RouterMessage]:
    """Each message of its outbox, which is asked for the next one only then."""
    async for written in link.outbox.messages():
        yield router_pb2.RouterMessage.FromString(written)
