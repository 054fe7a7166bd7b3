"""Answers in a formal language.

An engine with grammars of its own (SGLang: xgrammar) is given the grammar and never runs these
classes on a row. Elsewhere (sim) they mask the row themselves, by llguidance.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy
from msgspec import Meta

from tandem.logits.forms import compiler
from tandem.logits.forms.limits import MAX_SCHEMA, check_text
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import Need
from tandem.logits.ready.form import Form, FormError
from tandem.logits.ready.masks import Mask
from tandem.logits.ready.types import Text


class GrammarProcessor(Form):
    """Only tokens after which the answer can still become a sentence of the language; the end only
    where it is one. Its state is derived from the history.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY, Need.VOCABULARY, Need.TOKENIZER})
    batch_is_total: ClassVar[bool] = False  # tokens that do not fit raise
    comes_first: ClassVar[bool] = True
    """An engine's own grammar applies before all processors, so this must too."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._compiled: Any = None
        """A matcher that no token was given to; several processors share it."""
        self._matcher: Any = None
        """The processor's own matcher, from its first row on."""
        self._read = 0

    @property
    def source(self) -> str:
        """The grammar as the client wrote it."""
        return self._source

    @property
    def for_engine(self) -> str:
        """What an engine with grammars of its own is given."""
        return self._source

    def use(self, compiled: bytes, model: Model) -> None:
        self._compiled = compiler.matcher(compiled, model)

    def begins(self, token_ids: Sequence[int], model: Model) -> bool:
        if self._compiled is None:
            return True
        matcher = self._compiled.deep_copy()
        for token in token_ids:
            if token in model.eos_token_ids:
                return bool(matcher.is_accepting())
            if not matcher.consume_token(token):
                return False
        return True

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        generated = input_ids.generated
        if self._matcher is None or len(generated) < self._read:
            self._matcher, self._read = self._compiled.deep_copy(), 0
        self._matcher.consume_tokens(list(generated[self._read :]))
        self._read = len(generated)
        if self._matcher.is_error():
            raise FormError("the answer's form cannot go on behind the tokens so far")
        allowed = numpy.frombuffer(self._matcher.compute_logit_bias(), dtype=numpy.uint8)
        if self._matcher.is_error():
            raise FormError("the answer's form takes too much for the next token")
        return Mask("only", numpy.flatnonzero(allowed))


class JsonSchema(GrammarProcessor):
    """JSON that a JSON Schema describes, on one line, with a blank after each comma and colon and
    no other: some models would go on with blanks for ever.
    """

    kind: ClassVar[compiler.Kind] = "json_schema"

    def __init__(self, schema: Annotated[dict[str, Any], Meta(max_length=MAX_SCHEMA)]) -> None:
        try:
            source = json.dumps(schema)
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        super().__init__(source)


class Regex(GrammarProcessor):
    """Text that a regular expression matches from its beginning to its end."""

    kind: ClassVar[compiler.Kind] = "regex"

    def __init__(self, pattern: Text) -> None:
        check_text(pattern, quoted=False)
        super().__init__(pattern)


class Ebnf(GrammarProcessor):
    """Text of a grammar in GBNF, the EBNF of llama.cpp and xgrammar, whose first rule is `root`."""

    kind: ClassVar[compiler.Kind] = "ebnf"

    def __init__(self, grammar: Text) -> None:
        check_text(grammar, quoted=True)
        super().__init__(grammar)
