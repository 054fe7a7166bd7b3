"""Conversations read with the store of prefixes and without: both are to give the same prompts."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from prometheus_client import CollectorRegistry

from conversing.drawn import Asked, Drawing
from conversing.families import CONTEXT
from conversing.texts import Texts
from tandem.errors import RequestError
from tandem.upstream.submission import SubmittedPrompt
from tandem.v1 import router_pb2
from tandem_frontend.config import FrontendConfig
from tandem_frontend.metrics import PrefixMetrics
from tandem_frontend.openai import chat_template, prefix_store, prefixes
from tandem_frontend.openai.asked import Origin
from tandem_frontend.openai.prefix_store import Lookup, PrefixStore
from tandem_frontend.openai.reading.reader import Reader
from tandem_frontend.openai.reading.wire import Read, ReadingOrder

BATCH: Final = 50
"""Conversations that share a store."""
_SERVED: Final = router_pb2.ServedModel(longest_context=CONTEXT).SerializeToString()
_TOOLS: Final = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "tool_choice": "none",
}
_SEGMENTS: Final = (1, *[16, 64, 256] * 5, prefixes.SEGMENT_CHARACTERS)
"""The fewest characters of a segment: fewer than a frontend's, so that there are more cuts."""
_CHECK_EVERY: Final = 16
"""A store is asked by fewer requests than a frontend's."""
_ROOM: Final = (2**26, 2**26, 2**26, 30_000)
"""Bytes of a store: the last one forgets much."""


@dataclasses.dataclass
class Tally:
    """What came of a family's conversations."""

    conversations: int = 0
    requests: int = 0
    refused: int = 0
    """Requests that the template does not take, with the store and without alike."""
    tokens: int = 0
    known: int = 0
    """Tokens that the store knew."""
    checks: int = 0
    """Prompts that the store itself compared."""
    differences: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: Tally) -> None:
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Family:
    """A model's files, as a process that reads bodies knows them."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._reader = Reader.load(FrontendConfig(model_path=str(path), served_model_name=name))
        template = chat_template.load(path)
        assert template is not None
        self._template = template
        self._takes_tools = template.takes_tools and self._takes(_TOOLS)

    def _takes(self, fields: dict[str, Any]) -> bool:
        """Whether the template takes a request that has these fields."""
        body = {"model": self.name, "messages": [{"role": "user", "content": "x"}]}
        return isinstance(self._read(Asked(body | fields, "", ""), None), SubmittedPrompt)

    def compare(self, seed: int, batch: int) -> Tally:
        """Read one batch of conversations, which depend on the arguments alone. They take turns, as
        those of many clients do.
        """
        draw = random.Random(f"{seed} {self.name} {batch}")
        apart = draw.choice(_SEGMENTS)
        drawing = Drawing(
            draw,
            Texts(draw, self._reader.tokenizer.added_tokens, self._template.source),
            model=self.name,
            tools=self._takes_tools,
            size=6 if apart == prefixes.SEGMENT_CHARACTERS else 1,
        )
        tally = Tally(conversations=BATCH)
        store = _Store(draw.choice(_ROOM))
        open = dict(enumerate(drawing.conversation() for _ in range(BATCH)))
        with _set(prefixes, SEGMENT_CHARACTERS=apart), _set(prefix_store, CHECK_EVERY=_CHECK_EVERY):
            while open:
                number = draw.choice([*open])
                asked = next(open[number], None)
                if asked is None:
                    del open[number]
                    continue
                if difference := self._compare(asked, store, tally):
                    where = f"{self.name}, batch {batch}, conversation {number}"
                    tally.differences.append(f"{where}: {difference}")
                    store = store.renewed(tally)
        store.renewed(tally)
        return tally

    def _compare(self, asked: Asked, store: _Store, tally: Tally) -> str:
        """What differs; empty: nothing."""
        tally.requests += 1
        alone = self._read(asked, None)
        lookup = store.lookup(asked.tenant, self.name)
        assert lookup is not None
        found = self._read(asked, lookup)
        if isinstance(alone, str):
            tally.refused += 1
            return "" if found == alone else f"{alone} alone, and with the store {_shown(found)}"
        tally.tokens += alone.tokens
        if found != alone:
            return f"{_shown(alone)} alone, and with the store {_shown(found)}: {_first(asked)}"
        return "the store found a difference" if store.different else ""

    def _read(self, asked: Asked, lookup: Lookup | None) -> SubmittedPrompt | str:
        """The prompt, or why there is none."""
        order = ReadingOrder(
            kind="chat_completions",
            model=self.name,
            body=json.dumps(asked.body).encode(),
            served=_SERVED,
            origin=Origin(lora_adapter=asked.lora_adapter),
            asks=lookup is not None,
        )
        try:
            read = self._reader.read(order, lookup)
        except RequestError as error:
            return str(error)
        assert isinstance(read, Read)
        whole = read.submission if lookup is None else lookup.completed(read.submission)
        (prompt,) = whole.prompts
        return prompt


class _Store(PrefixStore):
    def __init__(self, most_bytes: int) -> None:
        self._registry = CollectorRegistry()
        self._room = most_bytes
        super().__init__(most_bytes, PrefixMetrics(self._registry))

    def renewed(self, tally: Tally) -> _Store:
        """An empty one in its place, for after a difference nothing is kept; what it did is added
        to the tally.
        """
        tally.known += self._value("tandem_frontend_known_prompt_tokens_total")
        for result in ("same", "different"):
            tally.checks += self._value("tandem_frontend_prefix_checks_total", result=result)
        return _Store(self._room)

    @property
    def different(self) -> bool:
        return self._value("tandem_frontend_prefix_checks_total", result="different") > 0

    def _value(self, name: str, **labels: str) -> int:
        return int(self._registry.get_sample_value(name, labels) or 0)


@contextmanager
def _set(module: ModuleType, **values: int) -> Iterator[None]:
    """A module's constants have these values for a while."""
    usual = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(usual)


def _shown(found: SubmittedPrompt | str) -> str:
    return found if isinstance(found, str) else f"{found.tokens} tokens"


def _first(asked: Asked) -> str:
    return json.dumps(asked.body)
