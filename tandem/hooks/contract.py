"""The output hook's contract: what a hook is given, and what it may answer. Standard library only.

A hook is a callable class, built once in each process that runs it. Workers call the hook in both
phases, on every chunk of every sequence, after detokenisation and stop strings and before anything
is sent:

    class UpperCase:
        def __call__(self, chunk: Chunk) -> Verdict:
            return emit(chunk.text_diff.upper())

The prefill and the decode worker each run their own instance under their own request_id; nothing is
shared (S0-034). A hook that raises, answers with something else than a verdict, or takes longer
than its timeout fails its request closed: nothing of that chunk is shown.

A hook may also have, all of them optional:

- `__init__` with keyword arguments: it gets the `config` of its entry in the settings.
- `async def __call__(self, chunk)`: awaited; the chunks of one request still come in order.
- `close(self, request_id: int)`: called once for each sequence, whatever ended it (finish, abort,
  disconnect, error, timeout), after its last call.
- `resumable = True`: the hook answers the same to the same chunks, so that a request whose decode
  worker was lost may go on at another one. There the hook is called once more with the chunks that
  the lost worker's hook had, `chunk.replay` set, and must let through what the client has seen.
- `startup(self)` and `shutdown(self)`, plain or async: before the first call, and after the last.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

Phase = Literal["prefill", "decode"]
Action = Literal["emit", "suppress", "terminate"]


class Chunk(NamedTuple):
    """One piece of one sequence's output. Chunks cannot be changed, and hooks must not keep them:
    keep what the hook needs, keyed by `request_id`. (A tuple: nothing is cheaper to make.)
    """

    request_id: int
    """The phase's own number of the sequence, unique in this process and never reused. Key by this
    number whatever the hook remembers.
    """
    output_index: int
    """Which of the request's n outputs: 0 .. n-1. Each is a sequence with its own request_id."""
    text_diff: str
    """Text of this chunk, already cut at stop strings. May be empty: on the final call, or inside a
    multi-byte character.
    """
    text: str
    """All text of the sequence so far as it came to this hook, this chunk included: as the model
    wrote it, or as the hooks before it in the chain let it through; not what this hook's own
    verdicts made of it.
    """
    token_ids_diff: tuple[int, ...]
    """Token ids of this chunk."""
    is_final: bool
    """True on exactly one call for each sequence: its last (S0-022)."""
    aborted: bool
    """True on a final call that was not the model's doing: cancelled, timed out, failed. Its
    verdict is not applied.
    """
    streaming: bool
    """Whether the client asked for a stream. The calls are the same either way."""
    phase: Phase = "decode"
    trace_id: str = ""
    """Joins the calls of both phases that belong to one client request."""
    model: str = ""
    replay: bool = False
    """The hook of a lost worker has judged the chunk; see `resumable` above."""
    lora_adapter: str = ""
    """The LoRA adapter that wrote the chunk; empty: the model alone did."""


@dataclass(slots=True)
class Verdict:
    """What becomes of a chunk. Build a verdict with `emit`, `suppress` or `terminate`, and do not
    change it afterwards. (Not frozen, because freezing costs 0.3 µs a token.)
    """

    action: Action
    text: str = ""
    reason: str = ""
    hold_tokens: int = 0
    """How many of the last token ids, with their logprobs, wait for a later verdict."""
    show_tokens: bool = True
    """Whether the other token ids that waited are shown; else they are dropped for good."""


def emit(text: str, *, hold_tokens: int = 0, show_tokens: bool = True) -> Verdict:
    """Show `text` in place of the chunk's. Token ids and logprobs stay the model's (S0-009).

    A hook that holds text back to look at it later must hold its tokens too, or a client reads
    there what the text does not show yet: `hold_tokens` of the sequence's last token ids, counted
    over this chunk's and those that were held before it, stay behind. The others are shown, or with
    `show_tokens=False` dropped: for text that was rewritten so that its ids must not be read.
    """
    return Verdict("emit", text, "", hold_tokens, show_tokens)


def suppress(*, hold_tokens: int = 0) -> Verdict:
    """Show nothing of this chunk, in any channel: text, token ids, logprobs (S0-010).

    `hold_tokens` as in `emit`: the last tokens wait, the others are dropped.
    """
    return Verdict("suppress", "", "", hold_tokens, False)


def terminate(reason: str, *, text: str = "") -> Verdict:
    """Withhold this chunk, and all that was held, and end the whole request, all n outputs;
    `reason` becomes the stop_reason (S0-013, S0-029).

    `text` is shown as the sequence's last, in place of what is withheld: the good part before a
    hit. Its token ids and logprobs are not shown.
    """
    return Verdict("terminate", text, reason)


class Hook(Protocol):
    """What a hook class must offer; the optional parts are named at the top of this module."""

    def __call__(self, chunk: Chunk) -> Verdict | Awaitable[Verdict]: ...


# The names under which hooks for TensorRT-LLM were written: they run here once their import line is
# changed.
PostProcessorHookChunk = Chunk
PostProcessorHookVerdict = Verdict
