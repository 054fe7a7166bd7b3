"""Compiles forms with llguidance, and tokenises choices: what an engine without grammars of its own
works with (sim).

Compiling is the dangerous part: a short source can take any time, memory and stack. Making a
matcher of what was compiled takes as much again, and no more.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy

from tandem.logits.forms.productive import NO_ANSWER
from tandem.logits.forms.tagged import ONE_LINE, SpecialTokens, Tags, blamed, lark
from tandem.logits.model import Model

Kind: TypeAlias = Literal["json_schema", "regex", "ebnf", "choice", "tagged"]
STEP_LIMITS: Final[dict[str, Any]] = {
    "step_lexer_fuel": 100_000,
    "step_max_items": 10_000,
    "max_lexer_states": 20_000,
}
"""A mask takes about 10 ms at most, and a matcher 40 MB. llguidance's own limits are 2 to 12 times
as high."""
REHEARSED_TOKENS = 128
_SHORT = REHEARSED_TOKENS // 2
"""Tokens of a short answer: none is looked for that has more."""
_CLOSING: Final = ("]}", '"')
"""What ends JSON's lists and objects, and its texts. The one may stand in a text, and the other
begins one: which is the shorter way depends on where an answer is.
"""
answer_lists = msgspec.msgpack.Decoder(list[list[int]])
"""Reads what a choice is compiled to: its answers in tokens, each with the end."""


class CompiledForm(NamedTuple):
    content: bytes
    """What `Form.use` takes."""
    shortest: int | None = None
    """Tokens of the shortest answer that was found, without its end; None: none was."""


class Compiler(Protocol):
    """What a process that compiles forms is given. Made once, then used in forks."""

    def compile(self, kind: Kind, source: str) -> CompiledForm:
        """Raises ValueError, in words for the client."""
        ...


class Steps(Protocol):
    """One answer of a form, token by token, as an engine goes along it."""

    def allowed(self) -> Any:
        """Which tokens may come next: numbers, (vocabulary,), 0 for those that may not. Raises
        ValueError where finding them passes a limit.
        """
        ...

    def take(self, token: int) -> bool:
        """Whether the answer has ended with it. Raises ValueError as `allowed`."""
        ...


class LlguidanceCompiler:
    """Compiles, and then rehearses an answer: a form that cannot begin one is refused."""

    def __init__(
        self, *, vocabulary: int, eos_token_ids: list[int], tokenizer_path: str | None
    ) -> None:
        self._model = Model(
            vocabulary=vocabulary,
            eos_token_ids=eos_token_ids,
            tokenizer_path=tokenizer_path,
        )
        warm_up(self._model)

    def compile(self, kind: Kind, source: str) -> CompiledForm:
        compiled = compile_form(kind, source, self._model)
        if kind == "choice":
            return CompiledForm(compiled, shortest_choice(compiled))
        made = matcher(compiled, self._model)
        return CompiledForm(compiled, rehearse(lambda: _Steps(made.deep_copy()), self._model))


def rehearse(begin: Callable[[], Steps], model: Model) -> int | None:
    """Take some tokens of answers. Returns how many the shortest has that was found; None: none has
    ended so soon. Raises ValueError where an answer cannot go on, or passes a limit.
    """
    _rehearse(begin())
    found = [_length(begin(), order, model) for order in closing_first(model)]
    return min((length for length in found if length is not None), default=None)


def shortest_choice(compiled: bytes) -> int:
    """Tokens of the shortest of some answers, without its end."""
    return min(map(len, answer_lists.decode(compiled))) - 1


def compile_form(kind: Kind, source: str, model: Model) -> bytes:
    """In this process. Raises ValueError for a form that has an error, saying which."""
    if kind == "choice":
        return _choice(source, model)
    if kind == "tagged":
        return lark(Tags.of(source), _special_tokens(model)).encode()
    return _grammar(kind, source).encode()


def special_tokens(model: Model, is_special: Callable[[int], bool]) -> SpecialTokens:
    """The special tokens of a model that has a tokenizer. `is_special`: of the tokens that were
    added to its vocabulary, those that a grammar's library knows by their ids.
    """
    assert model.tokenizer_path is not None
    added = json.loads(model.tokenizer_path.read_text(encoding="utf-8")).get("added_tokens", [])
    ids = {token["content"]: token["id"] for token in added}
    special = {text: i for text, i in ids.items() if is_special(i)}
    return SpecialTokens(special, model.eos_token_ids)


def matcher(compiled: bytes, model: Model) -> Any:
    """llguidance's matcher of a grammar, before the first token. Raises ValueError."""
    library = _library()
    limits = library.LLParserLimits(**STEP_LIMITS, verbose_errors=False)
    made = library.LLMatcher(tokenizer_of(model), compiled.decode(), log_level=0, limits=limits)
    if made.is_error():
        raise ValueError(_words(made.get_error()))
    return made


def warm_up(model: Model) -> None:
    """Make now what all grammars of a model share, which takes about a second for a large
    vocabulary. Where it cannot be made, a form that needs it is refused.
    """
    try:
        _special_tokens(model)
        closing_first(model)
    except ValueError:
        return


@functools.lru_cache(maxsize=4)
def tokenizer_of(model: Model) -> Any:
    """llguidance's view of a model's tokenizer. Raises ValueError."""
    if model.tokenizer_path is None:
        raise ValueError("this model has no tokenizer, and a grammar needs its tokens' texts")
    content = model.tokenizer_path.read_text(encoding="utf-8")
    return _library().LLTokenizer(content, model.vocabulary, sorted(model.eos_token_ids))


@functools.lru_cache(maxsize=4)
def closing_first(model: Model) -> Any:
    """Orders of all tokens, (vocabulary,) each: those first that close what is open, then what can
    be closed at once, then the longest. Raises ValueError.
    """
    texts = model.texts()
    return [
        numpy.array(sorted(range(model.vocabulary), key=_rank(texts, first).__getitem__))
        for first in (_CLOSING, _CLOSING[::-1])
    ]


def _choice(source: str, model: Model) -> bytes:
    """The answers in tokens, each with the end, sorted: those that begin alike are neighbours."""
    texts, token_ids = json.loads(source)
    for answer in token_ids:
        model.check(answer)
    answers = {(*answer, model.eos_token_id) for answer in (*map(model.encode, texts), *token_ids)}
    return msgspec.msgpack.encode(sorted(answers))


def _grammar(kind: Kind, source: str) -> str:
    library = _library().LLMatcher
    if kind == "json_schema":
        made: str = library.grammar_from_json_schema(source, overrides=ONE_LINE)
    elif kind == "regex":
        made = library.grammar_from_regex(source)
    else:
        made = library.grammar_from_lark(_lark(source))
    return made


def _lark(gbnf: str) -> str:
    converter = importlib.import_module("llguidance.gbnf_to_lark")
    try:
        lark: str = converter.gbnf_to_lark(gbnf)
    except RecursionError as error:
        raise ValueError("the grammar is nested too deep") from error
    except Exception as error:
        raise ValueError(str(error)) from error
    return lark


class _Steps:
    """The steps of an answer by llguidance's matcher."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def allowed(self) -> Any:
        mask = numpy.frombuffer(self._made.compute_logit_bias(), dtype=numpy.uint8)
        self._check()
        return mask

    def take(self, token: int) -> bool:
        self._made.consume_token(token)
        self._check()
        return bool(self._made.is_stopped())

    def _check(self) -> None:
        """A matcher that has failed counts as stopped, too."""
        if self._made.is_error():
            raise ValueError(_words(self._made.get_error()))


def _rehearse(steps: Steps) -> None:
    for _ in range(REHEARSED_TOKENS):
        allowed = numpy.flatnonzero(steps.allowed())
        if not len(allowed):
            raise ValueError(NO_ANSWER)
        if steps.take(int(allowed[len(allowed) // 2])):
            return


def _length(steps: Steps, order: Any, model: Model) -> int | None:
    """Tokens of an answer that takes the first token of `order` that may come, and ends as soon as
    it may. None: it has not come to an end yet.
    """
    ends = sorted(model.eos_token_ids)
    for count in range(_SHORT):
        allowed = steps.allowed()
        if allowed[ends].any():
            return count
        if steps.take(int(order[(allowed[order] != 0).argmax()])):
            return count + 1
    return None


def _words(error: str) -> str:
    """What llguidance says, for the client."""
    return NO_ANSWER if error.startswith("NoExtension") else blamed(error.strip())


def _library() -> Any:
    try:
        return importlib.import_module("llguidance")
    except ModuleNotFoundError as error:
        raise ValueError("grammars need llguidance, which is not installed here") from error


@functools.lru_cache(maxsize=4)
def _special_tokens(model: Model) -> SpecialTokens:
    return special_tokens(model, tokenizer_of(model).is_special_token)


def _rank(texts: Sequence[str], first: Sequence[str]) -> list[tuple[int, int]]:
    kinds = [set(signs) for signs in (*first, "[]{}")]
    return [
        (next((n for n, kind in enumerate(kinds) if text and kind.issuperset(text)), 3), -len(text))
        for text in texts
    ]
