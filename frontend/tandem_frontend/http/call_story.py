"""What a frontend tells of a request that has ended: where its time went here. Names, numbers and
codes; never what a prompt or an output says.
"""

from __future__ import annotations

import time

import msgspec

from tandem.timeline import NOTHING


class CallTimes(msgspec.Struct, gc=False, kw_only=True):
    """Filled while a call is served. Moments are of time.monotonic; 0: not reached."""

    arrived: float = msgspec.field(default_factory=time.monotonic)
    came: float = 0.0
    """The whole body had come."""
    body_bytes: int = 0
    read: float = 0.0
    """The body had become a request, with its prompt in tokens."""
    steps: dict[str, float] = {}
    """Seconds of the steps of reading."""
    no_workers: float = 0.0
    """Seconds of reading in which no router had workers of the model."""
    submitted: float = 0.0
    """A router was given the request, for the last time."""
    lost_routers: int = 0
    first: float = 0.0
    """The first output had come."""
    over: float = 0.0
    """The router had nothing more."""
    blocked: float = 0.0
    """Seconds in which the client's socket was full."""
    model: str = ""
    prompt_tokens: int = 0
    tokens: int = 0

    @property
    def reading(self) -> float:
        """Seconds until a router could have been given the request."""
        return max(0.0, (self.read or self.came or self.arrived) - self.arrived - self.no_workers)

    @property
    def queue(self) -> float:
        """Seconds in which no router took the request."""
        return self.no_workers + max(0.0, self.submitted - self.read if self.submitted else 0.0)


class CallStory(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One request, at one frontend. Moments are seconds since it came; 0: not reached."""

    trace_id: str
    endpoint: str
    model: str
    tenant: str
    seconds: float
    outcome: str
    """finished, or an error's code."""
    body_bytes: int = 0
    came: float = NOTHING
    read: float = NOTHING
    steps: dict[str, float] = {}
    no_workers: float = NOTHING
    queue: float = NOTHING
    """All seconds in which no router took it, `no_workers` included."""
    submitted: float = NOTHING
    lost_routers: int = 0
    first: float = NOTHING
    over: float = NOTHING
    blocked: float = NOTHING
    prompt_tokens: int = 0
    tokens: int = 0

    @property
    def reading(self) -> float:
        """Seconds until a router could have been given the request."""
        if not self.read:
            return self.came or self.seconds
        return max(0.0, self.read - self.no_workers)

    @property
    def delay(self) -> float:
        """Seconds until the first output, and from the workers' end to the end of the answer."""
        return (self.first or self.seconds) + (self.seconds - self.over if self.over else 0.0)


def story(
    times: CallTimes, *, trace_id: str, endpoint: str, tenant: str, outcome: str
) -> CallStory:
    """The story of a call that ends now."""
    arrived = times.arrived

    def since(moment: float) -> float:
        return round(moment - arrived, 6) if moment else NOTHING

    return CallStory(
        trace_id=trace_id,
        endpoint=endpoint,
        model=times.model,
        tenant=tenant,
        seconds=since(time.monotonic()),
        outcome=outcome,
        body_bytes=times.body_bytes,
        came=since(times.came),
        read=since(times.read),
        steps=times.steps,
        no_workers=round(times.no_workers, 6) or NOTHING,
        queue=round(times.queue, 6) or NOTHING,
        submitted=since(times.submitted),
        lost_routers=times.lost_routers,
        first=since(times.first),
        over=since(times.over),
        blocked=round(times.blocked, 6) or NOTHING,
        prompt_tokens=times.prompt_tokens,
        tokens=times.tokens,
    )
