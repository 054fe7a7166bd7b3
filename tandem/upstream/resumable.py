"""A request that may be resumed: where a decode worker is lost, another says again, from the first
row on, all that this one had made. What was shown before must come again; what follows it is new.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

from tandem.errors import WorkerLostError
from tandem.upstream.request_state import RequestState
from tandem.v1 import common_pb2

OTHERWISE = (
    "the decode worker was lost; not resumed: hooks or classifiers judged otherwise what was shown"
)


class _Passed:
    """What has come of a choice, in all channels but log-probabilities."""

    __slots__ = ("characters", "rows", "text", "token_ids", "tokens")

    def __init__(self) -> None:
        self.characters = self.tokens = self.rows = 0
        self.text = hashlib.blake2b(digest_size=16)
        self.token_ids = hashlib.blake2b(digest_size=16)

    def add(self, tokens: int, text: str, token_ids: Sequence[int]) -> None:
        self.rows += 1
        self.characters += len(text)
        self.tokens += tokens
        if text:
            self.text.update(text.encode("utf-8", "surrogatepass"))
        if token_ids:
            self.token_ids.update(array("I", token_ids))

    def reaches(self, other: _Passed) -> bool:
        """Whether both counts equal those of `other`."""
        return self.characters == other.characters and self.tokens == other.tokens

    def equals(self, other: _Passed) -> bool:
        """Whether as much is the same."""
        return (
            self.text.digest() == other.text.digest()
            and self.token_ids.digest() == other.token_ids.digest()
        )


class ResumableState(RequestState):
    """A RequestState that digests each row, which costs time a token."""

    __slots__ = ("_again", "_shown")

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._shown = [_Passed() for _ in self._choices]
        self._again: dict[int, _Passed] = {}
        """Repeated output of resumed choices, while it is less than was shown."""

    def silent(self, first_sequence: int) -> bool:
        start = first_sequence - self.base
        return not any(shown.rows for shown in self._shown[start : start + self.n])

    def begin(self, sequence: int) -> None:
        number = sequence - self.base
        if self._choices[number].rows:
            self._choices[number].rows = 0
            self._again[number] = _Passed()

    def row(
        self,
        sequence: int,
        offset: int,
        count: int,
        text: str,
        now: float,
        alone: bool,
        token_ids: Sequence[int] = (),
        logprobs: Sequence[common_pb2.TokenLogprobs] = (),
    ) -> bool:
        number = sequence - self.base
        if number in self._again and offset == self._choices[number].rows:
            tokens, characters = self._compared(number, count, text, token_ids)
            if (tokens, characters) == (count, len(text)):
                self._choices[number].rows = offset + 1
                return True
            count, text, token_ids = count - tokens, text[characters:], token_ids[tokens:]
            logprobs = _behind(logprobs, tokens)
        taken = super().row(sequence, offset, count, text, now, alone, token_ids, logprobs)
        if taken:
            self._shown[number].add(count, text, token_ids)
        return taken

    def finish(self, finish: common_pb2.Finish) -> None:
        if finish.sequence - self.base in self._again:
            self._differs()
        else:
            super().finish(finish)

    def _compared(
        self, number: int, count: int, text: str, token_ids: Sequence[int]
    ) -> tuple[int, int]:
        """How many tokens and characters of a row that comes again were shown before. All, where
        they are others than were shown: then the request has failed.
        """
        again, shown = self._again[number], self._shown[number]
        tokens = min(count, shown.tokens - again.tokens)
        characters = min(len(text), shown.characters - again.characters)
        again.add(tokens, text[:characters], token_ids[:tokens])
        if again.reaches(shown):
            del self._again[number]
            same = again.equals(shown)
        else:
            # Less than was shown has come, so nothing new can have.
            same = (tokens, characters) == (count, len(text))
        if same:
            return tokens, characters
        self._differs()
        return count, len(text)

    def _differs(self) -> None:
        self.fail(WorkerLostError(OTHERWISE))


def _behind(
    logprobs: Sequence[common_pb2.TokenLogprobs], tokens: int
) -> Sequence[common_pb2.TokenLogprobs]:
    """A row's log-probabilities, without those of its first `tokens`."""
    rest = []
    for entry in logprobs:
        cut = min(tokens, len(entry.token_id))
        tokens -= cut
        if cut < len(entry.token_id):
            top = cut * entry.top_count
            rest.append(
                common_pb2.TokenLogprobs(
                    sequence=entry.sequence,
                    token_id=entry.token_id[cut:],
                    logprob=entry.logprob[cut:],
                    top_count=entry.top_count,
                    top_token_id=entry.top_token_id[top:],
                    top_logprob=entry.top_logprob[top:],
                )
            )
    return rest
