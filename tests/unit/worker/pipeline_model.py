"""The output pipeline run on bytes, and a model of it that a reader can check by eye.

Every byte is one token of a byte-level tokenizer; tokens are given and returned as bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from hypothesis import strategies as st
from worker_harness import RecordingHook

from tandem.engine.base import Delta, Ending, Logprobs
from tandem.hooks.chain import Chain
from tandem.hooks.contract import Chunk, Verdict, emit
from tandem.hooks.deferred import Ruling, SequenceInfo
from tandem.hooks.loader import LoadedHook
from tandem.hooks.piece import Piece
from tandem.hooks.runner import inline
from tandem.hooks.settings import HookEntry
from tandem.text.byte_table import ByteTable
from tandem.text.stop_strings import StopStrings
from tandem.text.tokenizer import Tokenizer
from tandem.worker.core.output import SequenceOutput


@dataclass
class Outcome:
    """One entry of `pieces` and of `ids` for each chunk; None: nothing was shown."""

    pieces: list[str] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    logprobs: list[list[int]] = field(default_factory=list)
    stop_reason: str = ""
    calls: list[Chunk] = field(default_factory=list)
    completion_tokens: int = 0


@cache
def _tokens(tokenizer: Tokenizer) -> dict[int, int]:
    table = tokenizer._bytes
    assert isinstance(table, ByteTable)
    return {piece[0]: i for i, piece in enumerate(table.pieces) if len(piece) == 1}


def bytes_of(text: str) -> st.SearchStrategy[list[bytes]]:
    """The text in chunks of any size, cut inside characters too."""
    data = text.encode()
    cuts = st.lists(st.integers(0, len(data)), max_size=8).map(sorted)
    return cuts.map(lambda at: [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)])


def run(
    tokenizer: Tokenizer,
    chunks: Sequence[bytes],
    *,
    stops: Sequence[str] = (),
    verdicts: Sequence[Verdict] | None = None,
) -> Outcome:
    """Through the real pipeline. `verdicts` are the hook's, emit for all after them; None: no hook.

    The last chunk comes with the end, by length.
    """
    outcome, to_token = Outcome(), _tokens(tokenizer)
    to_byte = {token: byte for byte, token in to_token.items()}
    hook = RecordingHook()

    def judge(chunk: Chunk) -> Verdict:
        place = len(hook.calls) - 1
        given = verdicts or ()
        return given[place] if place < len(given) else emit(chunk.text_diff)

    hook.judge = judge
    runner = LoadedHook(hook, entry=HookEntry(path="h", name="h"), phase="decode", model="m")
    output = SequenceOutput(
        detokenizer=tokenizer.detokenizer(), stops=StopStrings(stops) if stops else None
    )
    info = SequenceInfo(request_id=1, group=1, output_index=0, streaming=True, trace_id="t")
    hooks = None if verdicts is None else Chain([runner]).sequence(info)
    for place, chunk in enumerate(chunks):
        ids = [to_token[byte] for byte in chunk]
        last = place == len(chunks) - 1
        logprobs = Logprobs([float(i) for i in ids], [[(i, 0.0)] for i in ids])
        cut = output.cut(Delta(1, ids, Ending.LENGTH if last else None, logprobs))
        piece: Piece | None = cut
        if hooks is None:
            end = output.cut_end
        else:
            final = output.cut_end is not None
            inline.run(hooks, hooks.begin(cut, final))
            piece = hooks.passed
            end = output.ruled(
                Ruling(1, piece, final, hooks.reason, generated=output.completion_tokens)
            )
        outcome.pieces.append("" if piece is None else piece.text)
        shown = [] if piece is None else list(piece.token_ids)
        outcome.ids.append([to_byte[i] for i in shown])
        extras = [] if piece is None or piece.extras is None else piece.extras
        outcome.logprobs.append([to_byte[int(chosen)] for chosen, _ in extras])
        if end is not None:
            outcome.stop_reason = end.stop_reason
            break
    outcome.completion_tokens = output.completion_tokens
    outcome.calls = [_as_bytes(call, to_byte) for call in hook.calls]
    return outcome


def reference(
    chunks: Sequence[bytes], *, stops: Sequence[str] = (), verdicts: Sequence[Verdict] = ()
) -> Outcome:
    """What should be shown: decode all so far, cut, leave out what was shown before, judge."""
    outcome, so_far, shown = Outcome(), b"", ""
    for place, chunk in enumerate(chunks):
        so_far += chunk
        final = place == len(chunks) - 1
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(so_far, final)
        cut, outcome.stop_reason = first_complete(text, stops)
        if not outcome.stop_reason and not final:
            cut = held_from(text, stops)
        diff, shown = text[len(shown) : cut], text[:cut]
        verdict = verdicts[place] if place < len(verdicts) else emit(diff)
        if verdict.action == "terminate":
            outcome.stop_reason = verdict.reason
        outcome.pieces.append(verdict.text if verdict.action == "emit" else "")
        if outcome.stop_reason:
            break
    return outcome


def first_complete(text: str, stops: Sequence[str]) -> tuple[int, str]:
    found = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text]
    return min(found)[1:] if found else (len(text), "")


def held_from(text: str, stops: Sequence[str]) -> int:
    """Where the longest ending begins that a stop string could begin with."""
    return next(
        at
        for at in range(len(text) + 1)
        if at == len(text) or any(stop.startswith(text[at:]) for stop in stops)
    )


def _as_bytes(call: Chunk, to_byte: dict[int, int]) -> Chunk:
    return call._replace(token_ids_diff=[to_byte[i] for i in call.token_ids_diff])
