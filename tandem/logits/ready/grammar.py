"""Answers in a formal language.

An engine with grammars of its own (SGLang: xgrammar) is given the grammar and never runs these
classes on a row; admission still builds them, so a bad grammar is refused by both phases alike.
Elsewhere (sim) they mask the row themselves, by llguidance.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy
from msgspec import Meta

from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import Need
from tandem.logits.ready.masks import Mask, MaskingProcessor
from tandem.logits.ready.types import Text

_MAX_SCHEMA = 4096
_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As Python's json.dumps, and as xgrammar without free whitespace."""


class GrammarProcessor(MaskingProcessor):
    """Only tokens after which the answer can still become a sentence of the language; the end only
    where it is one. Its state is derived from the history.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY, Need.VOCABULARY, Need.TOKENIZER})
    batch_is_total: ClassVar[bool] = False  # tokens that do not fit raise
    comes_first: ClassVar[bool] = True
    """An engine's own grammar applies before all processors, so this must too."""
    engine_field: ClassVar[str] = ""
    """What an engine with grammars of its own calls this kind."""

    def __init__(self) -> None:
        self._matcher: Any = None
        self._read = 0

    @abstractmethod
    def source(self) -> str:
        """The grammar as the client wrote it."""

    @abstractmethod
    def _compiled(self, library: Any) -> str:
        """The grammar in llguidance's form. Raises ValueError."""

    def prepare(self, model: Model) -> None:
        """Raises ValueError for a grammar that has an error, saying which."""
        library = _library()
        tokenizer = _tokenizer_of(model)
        grammar = self._compiled(library)
        if error := library.LLMatcher.validate_grammar(grammar, tokenizer):
            raise ValueError(error)
        self._matcher = library.LLMatcher(tokenizer, grammar, log_level=0)
        self._read = 0

    def mask(self, input_ids: TokenHistory) -> Mask | None:
        generated = input_ids.generated
        if len(generated) < self._read:
            self._matcher.reset()
            self._read = 0
        self._matcher.consume_tokens(list(generated[self._read :]))
        self._read = len(generated)
        if self._matcher.is_error():
            raise RuntimeError("the tokens so far do not fit the grammar")
        allowed = numpy.frombuffer(self._matcher.compute_logit_bias(), dtype=numpy.uint8)
        return Mask("only", numpy.flatnonzero(allowed))


class JsonSchema(GrammarProcessor):
    """JSON that a JSON Schema describes, on one line, with a blank after each comma and colon and
    no other: some models would go on with blanks for ever.
    """

    engine_field: ClassVar[str] = "json_schema"

    def __init__(self, schema: Annotated[dict[str, Any], Meta(max_length=_MAX_SCHEMA)]) -> None:
        super().__init__()
        self._schema = schema

    def source(self) -> str:
        return json.dumps(self._schema)

    def _compiled(self, library: Any) -> str:
        compiled: str = library.LLMatcher.grammar_from_json_schema(
            self._schema, overrides=_ONE_LINE
        )
        return compiled


class Regex(GrammarProcessor):
    """Text that a regular expression matches from its beginning to its end."""

    engine_field: ClassVar[str] = "regex"

    def __init__(self, pattern: Text) -> None:
        super().__init__()
        self._pattern = pattern

    def source(self) -> str:
        return self._pattern

    def _compiled(self, library: Any) -> str:
        compiled: str = library.LLMatcher.grammar_from_regex(self._pattern)
        return compiled


class Ebnf(GrammarProcessor):
    """Text of a grammar in GBNF, the EBNF of llama.cpp and xgrammar, whose first rule is `root`."""

    engine_field: ClassVar[str] = "ebnf"

    def __init__(self, grammar: Text) -> None:
        super().__init__()
        self._grammar = grammar

    def source(self) -> str:
        return self._grammar

    def _compiled(self, library: Any) -> str:
        converter = importlib.import_module("llguidance.gbnf_to_lark")
        try:
            lark = converter.gbnf_to_lark(self._grammar)
        except converter.GbnfToLarkError as error:
            raise ValueError(str(error)) from error
        compiled: str = library.LLMatcher.grammar_from_lark(lark)
        return compiled


def warm_up(model: Model) -> None:
    """Make now what all grammars of a model share, which takes about a second for a large
    vocabulary. Where it cannot be made, a request that needs it is told.
    """
    with contextlib.suppress(ValueError):
        _tokenizer_of(model)


def _tokenizer_of(model: Model) -> Any:
    return _tokenizer(model.tokenizer_path, model.vocabulary, tuple(sorted(model.eos_token_ids)))


def _library() -> Any:
    try:
        return importlib.import_module("llguidance")
    except ModuleNotFoundError as error:
        raise ValueError("grammars need llguidance, which is not installed here") from error


@functools.lru_cache(maxsize=4)
def _tokenizer(path: Path | None, vocabulary: int, eos_token_ids: tuple[int, ...]) -> Any:
    if path is None:
        raise ValueError("this model has no tokenizer, and a grammar needs its tokens' texts")
    content = path.read_text(encoding="utf-8")
    return _library().LLTokenizer(content, vocabulary, list(eos_token_ids))
