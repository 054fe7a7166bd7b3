"""A hook and the chunks of an answer: what would a client be shown?"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest
from typing import Any, Literal, ParamSpec, TypeVar

from tandem.errors import HookError
from tandem.hooks.chain import Chain
from tandem.hooks.contract import Hook, Phase
from tandem.hooks.loader import LoadedHook
from tandem.hooks.piece import Piece
from tandem.hooks.settings import HookEntry
from tandem.hooks.trial import Brought, Shown, TrialRequest

Ending = Literal["last", "empty", "abort"]
Given = str | tuple[str, Sequence[int]]
"""A chunk: its text, or its text and its token ids. Without ids it is one token, numbered over the
answer from 1.
"""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HookRun:
    """What a client would get of one output."""

    text: str
    token_ids: tuple[int, ...]
    shown: tuple[str | None, ...]
    """What each chunk let through, up to the one that ended it; None: nothing, in any channel."""
    stop_reason: str | None
    """The reason that a hook gave when it terminated this output."""
    error: HookError | None
    """The hook failed closed; its `__cause__` is what the hook raised."""


def _outside_async(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """`work` as a plain function, for tests that are no coroutines."""

    @functools.wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work(*args, **kwargs))
        raise RuntimeError("in an async test: await run_hook_async(...)")

    return run


async def run_hook_async(
    hooks: Hook | Sequence[Hook],
    chunks: Sequence[Given],
    *,
    ending: Ending = "last",
    phase: Phase = "decode",
    streaming: bool = True,
    request_id: int = 1,
    trace_id: str = "",
    model: str = "test",
    timeout_ms: float = 1000.0,
) -> HookRun:
    """Pass the chunks of one answer through a hook, or several in order.

    `ending`: `last`, the last chunk is the final one; `empty`, a final chunk without text follows
    it; `abort`, the client goes away after it. The hook's `startup` and `shutdown` are run. What a
    hook raises becomes `error`, as a worker would make it one.
    """
    chain = _chain(hooks, phase=phase, model=model, timeout_ms=timeout_ms)
    request = TrialRequest(chain, request_id=request_id, streaming=streaming, trace_id=trace_id)
    await _pass(chain, request, [_steps(chunks, ending)], aborted=ending == "abort")
    return _told(request.outputs[0])


run_hook = _outside_async(run_hook_async)


@_outside_async
async def run_outputs(
    hooks: Hook | Sequence[Hook], *outputs: Sequence[Given], timeout_ms: float = 1000.0
) -> list[HookRun]:
    """Pass the `n` outputs of one request through a hook together: one chunk of each at a step.

    A terminate in one of them ends all, and withholds what the others brought in the same step.
    """
    chain = _chain(hooks, phase="decode", model="test", timeout_ms=timeout_ms)
    request = TrialRequest(chain, outputs=len(outputs))
    steps = [_steps(chunks, "last") for chunks in outputs]
    await _pass(chain, request, steps, aborted=False)
    return [_told(output) for output in request.outputs]


async def _pass(
    chain: Chain, request: TrialRequest, outputs: Sequence[Sequence[Brought]], *, aborted: bool
) -> None:
    await chain.startup()
    try:
        for step in zip_longest(*outputs):
            if not request.over:
                await request.step(step)
        if aborted:
            await request.abort()
    finally:
        await chain.shutdown()


def _chain(hooks: Hook | Sequence[Hook], *, phase: Phase, model: str, timeout_ms: float) -> Chain:
    given = [*hooks] if isinstance(hooks, Sequence) else [hooks]
    return Chain(
        [
            LoadedHook(
                hook,
                entry=HookEntry(path=type(hook).__name__, timeout_ms=timeout_ms),
                phase=phase,
                model=model,
            )
            for hook in given
        ]
    )


def _steps(chunks: Sequence[Given], ending: Ending) -> list[Brought]:
    ids = count(1)
    pieces = [
        Piece(given, (next(ids),)) if isinstance(given, str) else Piece(given[0], tuple(given[1]))
        for given in chunks
    ]
    steps = [Brought(piece) for piece in pieces]
    if ending == "empty" or not steps:
        steps.append(Brought(Piece("", ())))
    if ending != "abort":
        steps[-1].final = True
    return steps


def _told(output: Shown) -> HookRun:
    return HookRun(
        text=output.text,
        token_ids=tuple(output.token_ids),
        shown=tuple(None if piece is None else piece.text for piece in output.pieces),
        stop_reason=output.stop_reason,
        error=output.error,
    )
