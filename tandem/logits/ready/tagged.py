"""Calls in an answer: JSON between tags, alone or in free text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from tandem.logits.forms import compiler
from tandem.logits.forms.limits import MAX_SCHEMA, check_text
from tandem.logits.forms.tagged import TaggedCall, Tags, Written
from tandem.logits.model import Model
from tandem.logits.ready.grammar import GrammarProcessor
from tandem.logits.ready.types import MAX_ITEMS, Text

_MAX_TRIGGERS = 64


class Tagged(GrammarProcessor):
    """Calls: each is a call's `begin`, JSON of its schema, and its `end`. Around all of them are
    `begin` and `end`, and between two the `separator`.

    With `triggers` they stand in free text, if there are any: free text goes on until a trigger,
    and from there one of the calls that begin with it must follow. Calls with nothing around them
    have free text between them, and the separator means nothing. Without triggers there is no free
    text: the answer is calls, at least one, or else JSON of the schema `answer`. Without calls the
    answer is what `answer`, `pattern` or `texts` says.

    Special tokens of the tokenizer that a text holds must come as those tokens. JSON is on one
    line, as from json_schema. A call's schema with `"x-guidance": {"lenient": true}` loses the
    keywords and formats that cannot be forced; they are an error otherwise.
    """

    kind: ClassVar[compiler.Kind] = "tagged"

    def __init__(
        self,
        calls: Annotated[list[TaggedCall], Meta(max_length=MAX_ITEMS)],
        triggers: Annotated[list[Text], Meta(max_length=_MAX_TRIGGERS)] | None = None,
        several: bool = True,
        separator: Written = "",
        begin: Written = "",
        end: Written = "",
        before: Written = "",
        answer: Annotated[dict[str, Any], Meta(max_length=MAX_SCHEMA)] | None = None,
        pattern: Text | None = None,
        texts: Annotated[list[Text], Meta(min_length=1, max_length=MAX_ITEMS)] | None = None,
    ) -> None:
        """`several`: more than one call may come. `before`: a text that ends some free text, with
        which the answer begins, such as a model's reasoning; all else follows it. `pattern`,
        `texts`: as of the processors `regex` and `choice`, where no calls are given.
        """
        forms = [each for each in (answer, pattern, texts) if each is not None]
        if triggers and forms:
            raise ValueError("with triggers the answer may be any text: give no schema for it")
        if not calls and len(forms) != 1:
            raise ValueError("without calls, give one of answer, pattern and texts")
        if calls and (pattern is not None or texts is not None):
            raise ValueError("beside calls, only a schema can say what the answer is")
        if pattern is not None:
            check_text(pattern, quoted=False)
        openings = [begin + call.begin for call in calls]
        if triggers:
            _check_triggers(triggers, openings)
        tags = Tags(
            calls=calls,
            triggers=triggers or [],
            several=several,
            separator=separator,
            begin=begin,
            end=end,
            before=before,
            answer=answer,
            pattern=pattern,
            choices=texts,
        )
        try:
            source = msgspec.json.encode(tags).decode()
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        super().__init__(source)
        self._for_engine = ""

    @property
    def for_engine(self) -> str:
        return self._for_engine

    def use(self, compiled: bytes, model: Model) -> None:
        self.keep(compiled)
        super().use(compiled, model)

    def keep(self, compiled: bytes) -> None:
        self._for_engine = compiled.decode()


def _check_triggers(triggers: Sequence[str], openings: Sequence[str]) -> None:
    """Check that each call can begin, and that each trigger can be followed."""
    any_trigger = tuple(triggers)
    for place, opening in enumerate(openings):
        if not opening.startswith(any_trigger):
            raise ValueError(f"calls[{place}] begins with no trigger")
    for place, trigger in enumerate(triggers):
        if not any(opening.startswith(trigger) for opening in openings):
            raise ValueError(f"triggers[{place}]: no call begins with it")
