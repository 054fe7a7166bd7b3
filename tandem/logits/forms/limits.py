"""How large the arguments of logits processors may be, forms of answers included. A check takes
time in proportion to what may be, not to what came: nothing is looked at past a limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_TEXT = 65_536
"""Characters of a regular expression or a grammar."""
MAX_SCHEMA = 4096
"""Members of a JSON Schema."""
_MARKS = re.compile(r'[\\"\[\]()#\n]')


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecLimits:
    """What the arguments of all logits processors of one request may come to."""

    max_bytes: int = 256 * 1024
    """As JSON."""
    max_depth: int = 64
    """Levels of nesting."""
    max_values: int = 65_536
    """Members and items, with what is in them."""

    def check(self, all_args: Sequence[Mapping[str, Any]]) -> None:
        """Raises ValueError, saying which limit is passed."""
        self._check_shape(all_args)
        self.check_bytes(sum(len(json.dumps(args)) for args in all_args))
        _check_travels(all_args)

    def check_bytes(self, count: int) -> None:
        """Raises ValueError where the JSON of all arguments is longer than it may be."""
        if count > self.max_bytes:
            raise ValueError(f"more than {self.max_bytes} bytes")

    def parse(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Arguments from their JSON. Raises ValueError, also for what is no JSON object."""
        self.check_bytes(sum(map(len, texts)))
        try:
            all_args = [json.loads(text or "{}") for text in texts]
        except RecursionError as error:
            raise self._too_deep() from error
        if not all(isinstance(args, dict) for args in all_args):
            raise ValueError("arguments must be a JSON object")
        self._check_shape(all_args)
        _check_travels(all_args)
        return all_args

    def _check_shape(self, all_args: Sequence[Mapping[str, Any]]) -> None:
        level: list[Any] = list(all_args)
        values = characters = depth = 0
        while level:
            depth += 1
            if depth > self.max_depth:
                raise self._too_deep()
            below: list[Any] = []
            for container in level:
                values += len(container)
                if values > self.max_values:
                    raise ValueError(f"more than {self.max_values} values")
                children = container
                if isinstance(container, dict):
                    children = container.values()
                    characters += sum(map(len, container))
                characters += sum([len(each) for each in children if isinstance(each, str)])
                below += [each for each in children if isinstance(each, dict | list | tuple)]
            self.check_bytes(characters)
            level = below

    def _too_deep(self) -> ValueError:
        return ValueError(f"nested deeper than {self.max_depth} levels")


DEFAULT_LIMITS = SpecLimits()


def _check_travels(all_args: Sequence[Mapping[str, Any]]) -> None:
    """JSON may write half of a surrogate pair, which is no text, and a number that is too large to
    be one; Python's also reads NaN. Nothing can be made of them, and they cannot travel.
    """
    try:
        json.dumps(all_args, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair, which is no character") from error
    except ValueError as error:
        raise ValueError("a number that is not finite, or too large") from error


def check_text(text: str, *, quoted: bool) -> None:
    """Raises ValueError for a regular expression, or with `quoted` a grammar (which has strings and
    comments), that is too long or whose groups are nested too deep.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"more than {MAX_TEXT} characters")
    if (most := DEFAULT_LIMITS.max_depth) < bracket_depth(text, quoted=quoted):
        raise ValueError(f"groups nested deeper than {most} levels")


def bracket_depth(text: str, *, quoted: bool) -> int:
    """How deep round brackets are nested. Those in character classes are not counted, nor with
    `quoted` those in strings and comments.
    """
    depth = deepest = after = 0
    until = ""
    for mark in _MARKS.finditer(text):
        place, sign = mark.start(), mark[0]
        if place < after:
            continue
        if sign == "\\":
            after = place + 2
        elif until:
            until = "" if sign == until else until
        elif sign == "[":
            until = "]"
        elif quoted and sign in '"#':
            until = '"' if sign == '"' else "\n"
        elif sign == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif sign == ")":
            depth -= 1
    return deepest
