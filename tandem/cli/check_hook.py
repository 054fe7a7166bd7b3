"""`tandem check-hook`: run an output hook against the calls that a worker makes, and say what it
did.

Nothing is served and no model is needed. It finds hooks that do not keep to the contract, that mix
up requests, or that are slow; it cannot tell whether a hook's verdicts are the ones its author
wants.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tandem.cli.console import Console
from tandem.hooks.contract import Chunk, Hook, Phase, Verdict
from tandem.hooks.loader import load_hook

TIMED_CALLS = 2_000
SLOW_SECONDS = 1e-3
"""A hook runs on the worker's path for every chunk: slower than this, and it shows in the time
between tokens.
"""
_WORDS = ("Once", " upon", " a", " time", ",", " ☃", " the", " END", ".")


@dataclass(slots=True)
class Case:
    """One thing that was tried. No problem: it passed."""

    name: str
    problems: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)


def check_hook(arguments: argparse.Namespace, console: Console) -> int:
    sys.path.insert(0, str(Path.cwd()))
    make = partial(load_hook, arguments.hook)
    make()  # What cannot be loaded is said once, by its own message.
    console.line(f"checking {console.bold(arguments.hook)}")
    cases = [
        _run(make, "prefill: its one chunk is final", [_prefill()]),
        _run(make, "decode: nine chunks, the last one final", _story(request_id=1)),
        _run(make, "decode: an empty final chunk", _empty_end(request_id=1)),
        _run(make, "decode: a request of one chunk", _story(request_id=1, words=_WORDS[:1])),
        _run(make, "an aborted request ends quietly", _aborted(request_id=1)),
        _alone_or_together(make, "two requests at once, each as if alone", [(1, 0), (2, 0)]),
        _alone_or_together(make, "two outputs of one request (n=2)", [(1, 0), (1, 1)]),
    ]
    for case in cases:
        console.done(f"{case.name}: {_summary(case)}") if not case.problems else _show(
            case, console
        )
    if not any(case.problems for case in cases):
        _show_time(make, console)
    return 1 if any(case.problems for case in cases) else 0


def _run(make: Callable[[], Hook], name: str, chunks: Iterable[Chunk]) -> Case:
    """Call a fresh hook with the chunks, up to one that ends the request."""
    case = Case(name)
    hook = make()
    ended: set[tuple[int, int]] = set()
    for chunk in chunks:
        key = (chunk.request_id, chunk.output_index)
        if key not in ended and _call(hook, chunk, case) is None:
            ended.add(key)
    return case


def _call(hook: Hook, chunk: Chunk, case: Case) -> Verdict | None:
    """The verdict, or None where the request is over: a terminate, or a failure, which is noted."""
    where = f"{chunk.phase} chunk {chunk.text_diff!r}"
    try:
        verdict: object = hook(chunk)
    except Exception as error:  # noqa: BLE001 - user code: its failure is the finding
        case.problems.append(f"raised {_words(error)} on {where}: the request would fail closed")
        return None
    if not isinstance(verdict, Verdict):
        case.problems.append(
            f"answered {type(verdict).__name__} on {where}: "
            "return emit(text), suppress() or terminate(reason)"
        )
        return None
    case.verdicts.append(verdict)
    return None if verdict.action == "terminate" else verdict


def _alone_or_together(
    make: Callable[[], Hook], name: str, keys: Sequence[tuple[int, int]]
) -> Case:
    """Interleaved sequences must get the verdicts that each gets on its own; else state is shared
    between them.
    """
    stories = [
        _story(request_id=request_id, output_index=index, words=_WORDS[shift:])
        for shift, (request_id, index) in enumerate(keys)
    ]
    alone = [_run(make, name, story) for story in stories]
    longest = max(map(len, stories))
    mixed = [story[step] for step in range(longest) for story in stories if step < len(story)]
    together = _run(make, name, mixed)
    expected = sorted(_told(verdict) for case in alone for verdict in case.verdicts)
    if not together.problems and sorted(map(_told, together.verdicts)) != expected:
        together.problems.append(
            "verdicts differ from those of each sequence alone: key what you remember by "
            "(chunk.request_id, chunk.output_index)"
        )
    return together


def _told(verdict: Verdict) -> tuple[str, str, str]:
    return (verdict.action, verdict.text, verdict.reason)


def _story(
    *,
    request_id: int,
    output_index: int = 0,
    words: Sequence[str] = _WORDS,
    phase: Phase = "decode",
    final: bool = True,
) -> list[Chunk]:
    return [
        Chunk(
            request_id=request_id,
            output_index=output_index,
            text_diff=word,
            text="".join(words[: index + 1]),
            token_ids_diff=(100 + index,),
            is_final=final and index == len(words) - 1,
            aborted=False,
            streaming=True,
            phase=phase,
            trace_id=f"{request_id:032x}",
            model="check-hook",
        )
        for index, word in enumerate(words)
    ]


def _prefill() -> Chunk:
    return _story(request_id=1, words=_WORDS[:1], phase="prefill")[0]


def _ending(request_id: int, *, aborted: bool) -> Chunk:
    return Chunk(
        request_id=request_id,
        output_index=0,
        text_diff="",
        text="".join(_WORDS[:2]),
        token_ids_diff=(),
        is_final=True,
        aborted=aborted,
        streaming=True,
        phase="decode",
        trace_id=f"{request_id:032x}",
        model="check-hook",
    )


def _empty_end(*, request_id: int) -> list[Chunk]:
    begun = _story(request_id=request_id, words=_WORDS[:2], final=False)
    return [*begun, _ending(request_id, aborted=False)]


def _aborted(*, request_id: int) -> list[Chunk]:
    begun = _story(request_id=request_id, words=_WORDS[:2], final=False)
    return [*begun, _ending(request_id, aborted=True)]


def _show(case: Case, console: Console) -> None:
    console.failed(case.name)
    for problem in dict.fromkeys(case.problems):
        console.line(f"      {problem}")


def _summary(case: Case) -> str:
    actions = [verdict.action for verdict in case.verdicts]
    counted = [f"{actions.count(action)} {action}" for action in dict.fromkeys(actions)]
    return ", ".join(counted)


def _show_time(make: Callable[[], Hook], console: Console) -> None:
    hook, seconds = make(), []
    for request_id in range(1, TIMED_CALLS // len(_WORDS) + 1):
        for chunk in _story(request_id=request_id):
            began = time.perf_counter()
            verdict = hook(chunk)
            seconds.append(time.perf_counter() - began)
            if verdict.action == "terminate":
                break
    percentile = statistics.quantiles(seconds, n=100)
    median, high = statistics.median(seconds), percentile[98]
    text = (
        f"time a call: median {median * 1e6:.1f} µs, p99 {high * 1e6:.1f} µs ({len(seconds)} calls)"
    )
    if high > SLOW_SECONDS:
        console.failed(
            f"{text}: slower than {SLOW_SECONDS * 1e3:.0f} ms delays every token of the worker"
        )
    else:
        console.done(text)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
