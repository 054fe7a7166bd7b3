"""Whether any finite text has a form. Engines go along a grammar token by token and do not see that
no way through it ends: `root ::= "a" root`, or a list whose every node needs a next one.

A form is read as the rules of a context-free grammar. A symbol is productive where one of its
alternatives consists of productive symbols (Hopcroft and Ullman 1979, lemma 4.1). What is not
understood of a form counts as productive: the answer errs in the client's favour, and what it
passes over costs that request alone.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

Symbol: TypeAlias = Hashable
Rules: TypeAlias = "dict[Symbol, list[list[Symbol]]]"
"""The alternatives of each symbol. An empty alternative is a text of its own; a symbol without
alternatives has no text.
"""
NO_ANSWER: Final = "no answer has this form"
_TEXT: Final[list[list[Symbol]]] = [[]]
_TOKEN: Final = re.compile(
    r"""
      (?P<comment>\#[^\n]*)
    | (?P<text>"(?:\\.|[^"\\])*" | \[(?:\\.|[^\]\\])*\])
    | (?P<rule>\w[\w-]*)\s*::=
    | (?P<name>\w[\w-]*)
    | (?P<repeat>[*+?]|\{\s*\d*\s*,?\s*\d*\s*\})
    | (?P<sign>[()|])
    """,
    re.VERBOSE,
)
_ZERO_TIMES: Final = re.compile(r"[*?]|\{\s*0*\s*[,}]")


def has_answer(rules: Rules, start: Symbol) -> bool:
    """Whether a symbol is productive, in time linear in the rules. One that has no rules is."""
    waits: dict[Symbol, list[tuple[Symbol, int]]] = {}
    missing: dict[tuple[Symbol, int], int] = {}
    found: deque[Symbol] = deque()
    for symbol, alternatives in rules.items():
        for place, alternative in enumerate(alternatives):
            needed = {each for each in alternative if each in rules}
            missing[symbol, place] = len(needed)
            for each in needed:
                waits.setdefault(each, []).append((symbol, place))
            if not needed:
                found.append(symbol)
    productive: set[Symbol] = set()
    while found:
        symbol = found.popleft()
        if symbol in productive:
            continue
        productive.add(symbol)
        for owner, place in waits.get(symbol, ()):
            missing[owner, place] -= 1
            if not missing[owner, place]:
                found.append(owner)
    return start in productive or start not in rules


def grammar_has_answer(source: str) -> bool:
    """Whether a grammar in GBNF has one."""
    return has_answer(_rules_of_grammar(source), "root")


def schema_has_answer(schema: Any) -> bool:
    """Whether a JSON Schema has one."""
    return has_answer(_Schemas(schema).rules(), _key(schema))


def _rules_of_grammar(source: str) -> Rules:
    """A group is a symbol of its own; so is what may come no times."""
    rules: Rules = {}
    alternatives: list[list[Symbol]] = [[]]
    around: list[list[list[Symbol]]] = []
    for match in _TOKEN.finditer(source):
        kind, written = match.lastgroup, match[0]
        if kind == "rule":
            alternatives, around = rules.setdefault(match["rule"], []), []
            alternatives.append([])
        elif kind == "name":
            alternatives[-1].append(written)
        elif kind == "text":
            alternatives[-1].append(match.start())  # what a repetition may be of
        elif written == "|":
            alternatives.append([])
        elif written == "(":
            around.append(alternatives)
            alternatives = [[]]
            around[-1][-1].append(match.start())
            rules[match.start()] = alternatives
        elif written == ")" and around:
            alternatives = around.pop()
        elif kind == "repeat" and alternatives[-1] and _ZERO_TIMES.match(written):
            alternatives[-1].pop()
    return rules


class _Schemas:
    """The rules of a JSON Schema: a symbol for each schema in it that an answer may need."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left: deque[Any] = deque([root])
        self._rules: Rules = {}

    def rules(self) -> Rules:
        while self._left:
            schema = self._left.popleft()
            key = _key(schema)
            if key not in self._rules:
                self._rules[key] = self._alternatives(schema)
        return self._rules

    def _symbol(self, schema: Any) -> Symbol:
        self._left.append(schema)
        return _key(schema)

    def _any_of(self, name: str, owner: Any, schemas: Iterable[Any]) -> Symbol:
        symbol = (name, _key(owner))
        self._rules[symbol] = [[self._symbol(each)] for each in schemas]
        return symbol

    def _alternatives(self, schema: Any) -> list[list[Symbol]]:
        if schema is False:
            return []
        if not isinstance(schema, dict):
            return _TEXT
        needed = [self._symbol(each) for each in _list(schema, "allOf")]
        if (target := self._target(schema.get("$ref"))) is not None:
            needed.append(self._symbol(target))
        needed += [
            self._any_of(name, schema, choices)
            for name in ("anyOf", "oneOf")
            if (choices := _list(schema, name))
        ]
        if schema.get("enum") == []:
            return []
        if "enum" not in schema and "const" not in schema:
            of_types = ("type", _key(schema))
            self._rules[of_types] = list(self._types(schema))
            needed.append(of_types)
        return [needed]

    def _types(self, schema: Mapping[str, Any]) -> Iterator[list[Symbol]]:
        """What an answer of each type needs that the schema allows."""
        given = schema.get("type", "any")
        for kind in given if isinstance(given, list) else [given]:
            match kind:
                case "object":
                    yield self._members(schema)
                case "array":
                    yield self._items(schema)
                case _:
                    yield []

    def _members(self, schema: Mapping[str, Any]) -> list[Symbol]:
        """Symbols of the properties that the schema requires."""
        known = schema.get("properties")
        known = known if isinstance(known, dict) else {}
        others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        required = {name for name in _list(schema, "required") if isinstance(name, str)}
        needed = [self._symbol(known.get(name, others)) for name in sorted(required)]
        if _least(schema, "minProperties") > len(required):
            further = [each for name, each in known.items() if name not in required]
            needed.append(self._any_of("further", schema, [*further, others]))
        return needed

    def _items(self, schema: Mapping[str, Any]) -> list[Symbol]:
        """Symbols of the items that the schema requires."""
        rest = schema.get("items", True)
        first = _list(schema, "prefixItems")
        if isinstance(rest, list):  # as in drafts before 2020-12
            first, rest = rest, schema.get("additionalItems", True)
        least = _least(schema, "minItems")
        needed = [self._symbol(each) for each in first[:least]]
        if least > len(first):
            needed.append(self._symbol(rest))
        return needed

    def _target(self, reference: Any) -> Any:
        """What a reference into this schema means; None: nothing that is known."""
        if not isinstance(reference, str) or not re.match(r"#(/|$)", reference):
            return None
        found = self._root
        for part in reference.split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and len(name) < 8:
                found = dict(enumerate(found)).get(int(name))
            else:
                found = found.get(name) if isinstance(found, dict) else None
        return found


def _list(schema: Mapping[str, Any], name: str) -> Sequence[Any]:
    found = schema.get(name)
    return found if isinstance(found, list) else ()


def _least(schema: Mapping[str, Any], name: str) -> int:
    found = schema.get(name)
    return found if isinstance(found, int) else 0


def _key(schema: Any) -> Symbol:
    """A schema's key: the same object is the same schema, as long as its root is held."""
    return schema if isinstance(schema, bool) else id(schema)


def check(kind: str, source: str) -> None:
    """Raises ValueError for a form that no finite text has: NO_ANSWER, of a call by its place."""
    if kind == "ebnf" and not grammar_has_answer(source):
        raise ValueError(NO_ANSWER)
    if kind == "json_schema" and not schema_has_answer(json.loads(source)):
        raise ValueError(NO_ANSWER)
    if kind != "tagged":
        return
    tags = json.loads(source)
    for place, call in enumerate(tags["calls"]):
        if not schema_has_answer(call["schema"]):
            raise ValueError(f"calls[{place}].schema: {NO_ANSWER}")
    if not schema_has_answer(tags["answer"]):
        raise ValueError(f"answer: {NO_ANSWER}")
