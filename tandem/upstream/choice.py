"""Which router gets a request, of several that take requests.

The better of two at random, and not the best of all: what routers say is up to a second old, and
frontends that all followed the same words would send everything to one router (Mitzenmacher, The
Power of Two Choices in Randomized Load Balancing, 2001).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tandem.upstream.router_stream import RouterStream
from tandem.upstream.router_view import EditionView
from tandem.upstream.submission import Submission

Draw = Callable[[int], int]
"""A random number below the given one."""


class RouterCandidate(NamedTuple):
    stream: RouterStream
    edition: EditionView


class RouterChoice:
    def __init__(self, model: str, draw: Draw = random.randrange) -> None:
        """`model`: the one that requests are for, as streams' views are called."""
        self._model = model
        self._draw = draw

    def of(
        self, streams: Sequence[RouterStream], submission: Submission, sequences: int
    ) -> RouterStream:
        """By which stream, of those to the routers in use, so many sequences of a request go."""
        if len(streams) == 1:
            return streams[0]
        candidates = _candidates(streams, submission, self._model)
        if not candidates:
            return streams[self._draw(len(streams))]
        chosen = self._better_of_two(candidates)
        if chosen.edition.left <= 0:
            chosen = max(candidates, key=lambda each: each.edition.left)
        chosen.edition.sent += sequences
        return chosen.stream

    def has_pair(self, streams: Sequence[RouterStream], submission: Submission) -> bool:
        """Whether some router, of those, says that it has a pair which can run a request."""
        sha256 = submission.submit.tokenizer_sha256
        views = [each.view_of(self._model).edition(sha256) for each in streams]
        return any(each is not None and each.paired and each.can_run(submission) for each in views)

    def _better_of_two(self, candidates: Sequence[RouterCandidate]) -> RouterCandidate:
        count = len(candidates)
        if count == 1:
            return candidates[0]
        one, other = self._draw(count), self._draw(count - 1)
        first, second = candidates[one], candidates[other + (other >= one)]
        if first.edition.says_room and second.edition.says_room:
            return first if first.edition.left >= second.edition.left else second
        return first if len(first.stream.open) <= len(second.stream.open) else second


def _candidates(
    streams: Sequence[RouterStream], submission: Submission, model: str
) -> list[RouterCandidate]:
    """Streams whose router knows the edition, narrowed down to routers that take requests, have a
    pair, have one that can run this request, and still say something: each as far as some do.
    """
    sha256 = submission.submit.tokenizer_sha256
    views = [(each, each.view_of(model).edition(sha256)) for each in streams]
    candidates = [
        RouterCandidate(stream, edition) for stream, edition in views if edition is not None
    ]
    candidates = [each for each in candidates if each.edition.takes] or candidates
    candidates = [each for each in candidates if each.edition.paired] or candidates
    candidates = [each for each in candidates if each.edition.can_run(submission)] or candidates
    return [each for each in candidates if not each.stream.silent] or candidates
