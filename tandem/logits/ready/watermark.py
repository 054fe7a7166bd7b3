"""A watermark that can be found again in the tokens alone.

Source: Kirchenbauer et al. 2023, "A Watermark for Large Language Models", arXiv:2301.10226,
Algorithm 2 (soft red list) and section 4 (detection).
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import numpy
from msgspec import Meta

from tandem.logits.arrays import like, where
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import BaseLogitsProcessor, Need, Row

_Key = Annotated[str, Meta(min_length=1, max_length=1024)]
_Gamma = Annotated[float, Meta(gt=0, lt=1)]
_Width = Annotated[int, Meta(ge=1, le=16)]


class GreenList:
    """Which tokens are green after which: a share `gamma` of the vocabulary, chosen by a keyed hash
    of the `width` tokens before and of the token itself.

    The paper permutes the vocabulary; a hash for each token gives every token the same chance
    without a permutation, so a detector can ask for one token alone. Integer arithmetic only: the
    same list on every machine and device.
    """

    def __init__(self, *, key: str, gamma: float, width: int, vocabulary: int) -> None:
        self.gamma, self.width = gamma, width
        self._key = key
        self._limit = min(int(gamma * 2**32), 2**32 - 1)
        self._tokens = _hashes(key, vocabulary)

    def members(self, before: Sequence[int]) -> Any:
        """Bool, (vocabulary,): what is green after these `width` tokens."""
        return _mix(self._tokens ^ self._seed(before)) < self._limit

    def holds(self, before: Sequence[int], token: int) -> bool:
        """Whether `token` is green after these `width` tokens."""
        return bool(_mix(self._tokens[token : token + 1] ^ self._seed(before))[0] < self._limit)

    def _seed(self, before: Sequence[int]) -> Any:
        content = ",".join(map(str, before)).encode()
        digest = hashlib.blake2b(content, digest_size=4, key=_secret(self._key)).digest()
        return numpy.uint32(int.from_bytes(digest, "little"))


class Watermark(BaseLogitsProcessor):
    """Adds `delta` to the logits of the green tokens, so that text generated so has more of them
    than chance allows. It changes what the model says: a low delta on certain steps changes little.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY, Need.VOCABULARY})
    keeps_state: ClassVar[bool] = False
    leaves_token = True
    batch_is_total: ClassVar[bool] = True

    def __init__(
        self,
        key: _Key,
        gamma: _Gamma = 0.25,
        delta: Annotated[float, Meta(gt=0, le=100)] = 2.0,
        width: _Width = 1,
    ) -> None:
        """`key`: a secret; who knows it can detect and remove the watermark. Give it in the
        deployment's configuration, not in requests. `width`: tokens that decide a green list."""
        self._key, self._gamma, self._delta, self._width = key, gamma, delta, width
        self._green: GreenList | None = None

    def prepare(self, model: Model) -> None:
        self._green = GreenList(
            key=self._key, gamma=self._gamma, width=self._width, vocabulary=model.vocabulary
        )

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        self.apply_batch([self], [input_ids], logits[None])

    @classmethod
    def apply_batch(
        cls, processors: Sequence[Self], histories: Sequence[TokenHistory], logits: Row
    ) -> None:
        """All green lists go to a GPU at once: so many copies would wait for each other."""
        values: Any = logits[:]
        found = numpy.zeros(values.shape, dtype=bool)
        for row, each, history in zip(found, processors, histories, strict=True):
            green = each._members(history)
            if green is not None:
                row[:] = green
        deltas = numpy.array([[each._delta] for each in processors], dtype=numpy.float32)
        logits[:] = where(like(logits, found), values + like(logits, deltas), values)

    def _members(self, input_ids: TokenHistory) -> Any:
        """Bool, (vocabulary,): what is green now; None where too little is before it."""
        if self._green is None or len(input_ids) < self._width:
            return None
        return self._green.members(input_ids[-self._width :])


@dataclass(slots=True, frozen=True)
class Detection:
    """What a detector found. `z` is the standard score of `green` of `scored` tokens; `p_value` the
    chance of at least as many in a text without the watermark (normal approximation)."""

    scored: int
    green: int
    z: float
    p_value: float


class WatermarkDetector:
    """Finds the watermark of `Watermark` with the same arguments, in token ids alone."""

    def __init__(self, *, key: str, vocabulary: int, gamma: float = 0.25, width: int = 1) -> None:
        self._green = GreenList(key=key, gamma=gamma, width=width, vocabulary=vocabulary)

    def detect(self, token_ids: Sequence[int]) -> Detection:
        """z = (green - gamma * scored) / sqrt(scored * gamma * (1 - gamma)).

        The first `width` tokens have nothing before them and are not scored; give the prompt's last
        ones too where they are known. A run of tokens that repeats is scored once, because its
        repetitions prove nothing. Raises ValueError where no token can be scored.
        """
        width, gamma = self._green.width, self._green.gamma
        runs = {tuple(token_ids[end - width : end + 1]) for end in range(width, len(token_ids))}
        if not runs:
            raise ValueError(f"{len(token_ids)} tokens are too few to look for a watermark")
        green = sum(self._green.holds(run[:-1], run[-1]) for run in runs)
        deviation = math.sqrt(len(runs) * gamma * (1 - gamma))
        z = (green - gamma * len(runs)) / deviation
        return Detection(len(runs), green, z, 0.5 * math.erfc(z / math.sqrt(2)))


def _secret(key: str) -> bytes:
    """As long as BLAKE2b takes a key."""
    return hashlib.blake2b(key.encode()).digest()


@functools.lru_cache(maxsize=8)
def _hashes(key: str, vocabulary: int) -> Any:
    """A keyed 32-bit hash for each token id."""
    digest = hashlib.blake2b(b"tokens", digest_size=4, key=_secret(key)).digest()
    seed = numpy.uint32(int.from_bytes(digest, "little"))
    hashes = _mix(_mix(numpy.arange(vocabulary, dtype=numpy.uint32)) ^ seed)
    hashes.flags.writeable = False
    return hashes


def _mix(words: Any) -> Any:
    """MurmurHash3's 32-bit finaliser: every bit of a word decides every bit of the answer."""
    words = words ^ (words >> numpy.uint32(16))
    words = words * numpy.uint32(0x85EBCA6B)
    words = words ^ (words >> numpy.uint32(13))
    words = words * numpy.uint32(0xC2B2AE35)
    return words ^ (words >> numpy.uint32(16))
