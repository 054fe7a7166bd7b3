"""The segments of earlier prompts, so that a conversation's next turn is tokenised from where it
goes on.

Segments are kept by tenant: the time that a prompt takes tells nobody what others sent. Where the
store is full, the tenant with the most bytes loses what was not asked for the longest, the ends of
prompts before their beginnings. Of each 256 prompts with a known beginning one is read as a whole
and compared: the first difference ends the store for its model.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from tandem.prefix_blocks import MAX_BLOCKS, NUMBER_BYTES
from tandem.upstream.submission import SubmittedPrompt
from tandem_frontend.metrics import PrefixMetrics
from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.prefixes import Known, ReadText, Segment

log = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 400
"""Memory of a segment beside its token ids, blocks and chunks, with its name."""
MOST_TENANTS: Final = 1024
CHECK_EVERY: Final = 256
_AT_ONCE: Final = 16
"""The largest tenant loses this part of its bytes, so that tenants are seldom compared."""


class PrefixStore:
    """Lives on an event loop, beside whatever tokenises prompts."""

    def __init__(self, most_bytes: int, metrics: PrefixMetrics) -> None:
        """`most_bytes`: 0: nothing is kept."""
        self._most = most_bytes
        self._metrics = metrics
        self._tenants: OrderedDict[str, _Kept] = OrderedDict()
        """The least recently used first."""
        self._held = 0
        self._found = 0
        """Prompts whose beginning was known."""
        self._distrusted: set[str] = set()
        metrics.held_bytes.set_function(lambda: self._held)

    def lookup(self, tenant: str, model: str) -> Lookup | None:
        """For one request; None: its prompt is to be tokenised in one go."""
        if not self._most or model in self._distrusted:
            return None
        return Lookup(self, tenant, model)

    def find(self, tenant: str, names: Sequence[bytes]) -> list[Segment]:
        """The segments of these names, up to the first that is not there."""
        kept = self._tenants.get(tenant)
        return [] if kept is None else kept.find(names)

    def known(self, found: Sequence[Segment]) -> Known:
        """What a reader of the prompt is told."""
        if not found:
            return Known()
        self._found += 1
        if self._found % CHECK_EVERY == 0:
            return Known(check=True)
        known = Known.of(found)
        self._metrics.known_tokens.inc(known.tokens)
        return known

    def keep(self, tenant: str, names: Sequence[bytes], segments: Sequence[Segment]) -> None:
        kept = self._tenants.setdefault(tenant, _Kept())
        self._tenants.move_to_end(tenant)
        self._held += kept.keep(names, segments)
        while len(self._tenants) > MOST_TENANTS:
            _, oldest = self._tenants.popitem(last=False)
            self._held -= oldest.bytes
        while self._held > self._most:
            name = max(self._tenants, key=lambda each: self._tenants[each].bytes)
            self._held -= self._tenants[name].shrink()
            if not self._tenants[name].bytes:
                del self._tenants[name]

    def checked(self, model: str, *, differs: bool) -> None:
        """A prompt of the model was read as a whole beside its segments. Where its tokens differ,
        nothing more is kept of the model; what is kept of others, with whom names are shared, goes
        too.
        """
        self._metrics.checks["different" if differs else "same"].inc()
        if not differs:
            return
        self._distrusted.add(model)
        self._tenants.clear()
        self._held = 0
        log.error(
            "a prompt's parts have other tokens than the prompt: prompts of the model are tokenised"
            " in one go from now on",
            extra={"model": model},
        )


class _Found(NamedTuple):
    names: Sequence[bytes]
    segments: Sequence[Segment]
    known: Known


class Lookup:
    """Finds the known segments of one request's prompts, and has the store keep the others."""

    def __init__(self, store: PrefixStore, tenant: str, model: str) -> None:
        self._store = store
        self._tenant = tenant
        self._model = model
        self._found: Sequence[_Found] = ()

    def known(self, prompts: Sequence[Sequence[bytes]]) -> Sequence[Known]:
        """See `PromptPrefixes`."""
        self._found = [self._find(names) for names in prompts]
        return [found.known for found in self._found]

    def completed(self, asked: Asked) -> Asked:
        """The request with its whole prompts, from what was read of their texts."""
        if not asked.read:
            return asked
        found = iter(self._found)
        whole = [
            prompt if read is None else self._completed(prompt, read, next(found))
            for prompt, read in zip(asked.prompts, asked.read, strict=True)
        ]
        known = sum(each.known.tokens for each in self._found)
        return msgspec.structs.replace(asked, prompts=whole, known_tokens=known, read=())

    def _find(self, names: Sequence[bytes]) -> _Found:
        segments = self._store.find(self._tenant, names)
        return _Found(names, segments, self._store.known(segments))

    def _completed(self, prompt: SubmittedPrompt, read: ReadText, found: _Found) -> SubmittedPrompt:
        segments = [*found.segments[: found.known.segments], *read.segments]
        differs = read.differs
        if found.known.check:
            differs = differs or segments[: len(found.segments)] != found.segments
            self._store.checked(self._model, differs=differs)
        if not differs:
            self._store.keep(self._tenant, found.names, segments[:-1])
        return SubmittedPrompt.of_packed(
            [segment.token_ids for segment in segments],
            blocks=b"".join([segment.blocks for segment in segments])[: MAX_BLOCKS * NUMBER_BYTES],
            chunks=b"".join([segment.chunks for segment in segments]),
            max_tokens=prompt.max_tokens,
            echo=prompt.echo,
        )


class _Kept:
    def __init__(self) -> None:
        self.bytes = 0
        self._segments: OrderedDict[bytes, Segment] = OrderedDict()
        """The least recently used first, of one prompt its last."""

    def find(self, names: Sequence[bytes]) -> list[Segment]:
        found: list[Segment] = []
        for name in names:
            segment = self._segments.get(name)
            if segment is None:
                break
            found.append(segment)
        return found

    def keep(self, names: Sequence[bytes], segments: Sequence[Segment]) -> int:
        before = self.bytes
        for name, segment in zip(reversed(names), reversed(segments), strict=True):
            if name not in self._segments:
                self._segments[name] = segment
                self.bytes += _size(segment)
            self._segments.move_to_end(name)
        return self.bytes - before

    def shrink(self) -> int:
        """Forget the least recently used segments. Returns how many bytes they had."""
        before = self.bytes
        while self._segments and self.bytes >= before - before // _AT_ONCE:
            _, segment = self._segments.popitem(last=False)
            self.bytes -= _size(segment)
        return before - self.bytes


def _size(segment: Segment) -> int:
    return SEGMENT_BYTES + len(segment.token_ids) + len(segment.blocks) + len(segment.chunks)
