"""What the core is told. Each call of Core.handle says when, in seconds of a clock that never goes
back.
"""

from __future__ import annotations

import msgspec

from tandem.endings import Outcome
from tandem.errors import TandemError
from tandem.prefix_blocks import Blocks
from tandem.timeline import LegTimes
from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem_router.core.values import NOTHING, Needs, Phase, Profile


class Event(msgspec.Struct, frozen=True):
    """Something that happened."""


class FrontendUp(Event, frozen=True):
    frontend: int
    """Numbers are never reused while something of the earlier frontend is open."""


class FrontendDown(Event, frozen=True):
    frontend: int


class Submit(Event, frozen=True):
    """A frontend's request, and what the router has read in it."""

    frontend: int
    message: router_pb2.Submit
    """Within bounds, and without its task, its blocks and its voucher, which follow."""
    task: bytes
    prompt_blocks: Blocks = ()
    """What stands for its blocks: see tandem/prefix_blocks.py. Empty: they are not known."""
    needs: Needs = NOTHING
    """Names in the task of what not all workers have; its tokens are not counted yet."""
    voucher: common_pb2.Voucher | None = None
    """The parked KV that decode alone goes on from."""
    first_span: int = 0
    """The router's own spans: sequence i's is first_span + i; 0: the router makes none."""
    fault: TandemError | None = None
    """Why it is to be refused, whatever the fleet; None: nothing is wrong with it."""
    chunk_names: tuple[bytes, ...] = ()
    """The names of the prompt's chunks (tandem/wire/prompt_chunks.py); empty: they are not
    known.
    """


class Cancel(Event, frozen=True):
    frontend: int
    first_sequence: int


class WorkerUp(Event, frozen=True, kw_only=True):
    """A worker's stream is open. `worker` is its address."""

    worker: str
    listed_as: Phase
    profile: Profile
    other_legs: int = 0
    """Legs of other routers on the worker, by the worker's first report."""
    step_age: float | None = None
    """By that report too. What else it says comes as a WorkerLoad."""


class WorkerDown(Event, frozen=True):
    """A worker's stream is broken: every leg on it is closed by that."""

    worker: str
    reason: str
    died: bool = True
    """Whether the worker may have died: not, where it or this router ended the stream, but for a
    worker that was given up with `died`.
    """
    unsent: frozenset[int] = frozenset()
    """Legs that have certainly not reached it."""


class WorkerDraining(Event, frozen=True):
    """Whether it is to get nothing new: it shuts down, or is no longer listed."""

    worker: str
    draining: bool


class WorkerLoad(Event, frozen=True):
    """What the worker reports at least once a second."""

    worker: str
    load: worker_pb2.Load


class WorkerFault(Event, frozen=True):
    """The worker at an address, connected or not, sent what cannot be read."""

    worker: str


class LegStarted(Event, frozen=True):
    worker: str
    leg: int


class LegVerdict(Event, frozen=True):
    worker: str
    leg: int
    terminate: bool
    reason: str = ""
    completion_tokens: int = 0
    """What the sequence has generated, where prefill terminates."""
    prompt_tokens: int = 0
    """Tokens of the prompt, as the worker counts them, where its hook terminates."""


class LegMade(Event, frozen=True):
    """What a decode leg's engine has made, for another to go on from."""

    worker: str
    leg: int
    steps: bytes = b""
    """A part of a serialised tandem.v1.Resumption: nobody opens it before it is used."""
    tokens: int = 0
    over: bool = False
    """The client has its end."""
    obstacle: str = ""
    """Why nobody could go on; empty: somebody could."""


class LegParked(Event, frozen=True, kw_only=True):
    """A context-only leg is about to close, and its KV is parked."""

    worker: str
    leg: int
    token_ids: tuple[int, ...]
    """The first, as hooks let it go."""
    logprobs: tuple[float, ...] = ()
    task_digest: bytes
    lease_seconds: float


class LegClosed(Event, frozen=True):
    worker: str
    leg: int
    outcome: Outcome
    reason: str = ""
    error: TandemError | None = None
    retryable: bool = False
    overlay: bytes = b""
    """REGENERATE: laid over the task of the next run."""
    worker_died: bool = False
    """FAILED: its worker's engine died, and all legs that it held with it."""
    begun: bool = True
    """LOST: the leg had reached its worker."""
    times: LegTimes | None = None
    """What became of the leg's time; None: nobody says."""


class LegFailed(Event, frozen=True):
    """The router could not say something to the leg's worker: its sequence ends."""

    worker: str
    leg: int
    error: TandemError


class Tick(Event, frozen=True):
    """Time has passed; nothing else happened."""


class Drain(Event, frozen=True):
    """Refuse what is new from now on."""


class Abandon(Event, frozen=True):
    """End everything that is still open."""


def step_age(load: worker_pb2.Load) -> float | None:
    """Seconds since the last step of an engine that has work; None: the worker cannot say."""
    return load.step_age_ms / 1000 if load.HasField("step_age_ms") else None
