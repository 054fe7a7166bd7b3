"""Passes pieces through a sequence's chain, and raises what a hook failed by."""

from __future__ import annotations

from tandem.hooks.chain import SequenceChain
from tandem.hooks.piece import Piece
from tandem.hooks.runner import async_, inline


def judge(chain: SequenceChain, piece: Piece, final: bool) -> Piece | None:
    """What may be shown of the piece. Raises HookError."""
    inline.run(chain, chain.begin(piece, final))
    return _passed(chain)


async def judge_async(chain: SequenceChain, piece: Piece, final: bool) -> Piece | None:
    """`judge` for a chain with async hooks."""
    await async_.run(chain, chain.begin(piece, final))
    return _passed(chain)


def abort(chain: SequenceChain) -> None:
    """The sequence is over."""
    inline.run(chain, chain.end())


def _passed(chain: SequenceChain) -> Piece | None:
    if chain.error is not None:
        raise chain.error
    return chain.passed
