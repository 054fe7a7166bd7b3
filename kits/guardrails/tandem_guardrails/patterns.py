"""`patterns`: regular expressions over the whole answer, in linear time."""

from __future__ import annotations

from tandem.errors import LoadError
from tandem_guardrails import arguments
from tandem_guardrails.pattern_filter import Action, Pattern, PatternFilter

ACTIONS: tuple[Action, ...] = ("redact", "terminate")
_KEYS = ("pattern", "name", "action", "replacement")


class Patterns(PatternFilter):
    """Each pattern is a mapping: `pattern` in RE2's syntax, and, all optional, `name` (the
    stop_reason of a terminate), `action` (redact or terminate) and `replacement`.
    """

    resumable = True

    def __init__(self, *, patterns: object, max_match: int = 256) -> None:
        """Raises LoadError."""
        if not isinstance(patterns, list) or not patterns:
            raise LoadError(f"patterns must be a list with at least one pattern, not {patterns!r}")
        super().__init__(
            [_pattern(place, given) for place, given in enumerate(patterns)],
            max_match=arguments.whole("max_match", max_match),
        )


def action_of(name: str, value: object) -> Action:
    """Raises LoadError."""
    return "terminate" if arguments.one_of(name, value, ACTIONS) == "terminate" else "redact"


def _pattern(place: int, given: object) -> Pattern:
    where = f"patterns[{place}]"
    one = arguments.mapping(where, given, _KEYS)
    return Pattern(
        name=arguments.text(f"{where}.name", one.get("name", f"pattern_{place}")),
        pattern=arguments.text(f"{where}.pattern", one.get("pattern")),
        action=action_of(f"{where}.action", one.get("action", "redact")),
        replacement=arguments.text(
            f"{where}.replacement", one.get("replacement", "[redacted]"), empty=True
        ),
    )
