"""`pii`: personal data, found by patterns and checksums, or by Presidio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tandem.errors import LoadError
from tandem.hooks.contract import Chunk, Verdict
from tandem_guardrails import arguments, checksums
from tandem_guardrails.pattern_filter import Pattern, PatternFilter
from tandem_guardrails.patterns import action_of
from tandem_guardrails.presidio import PresidioFilter

MAX_MATCH = 400
"""Characters of the longest: an e-mail address of 320, and room."""
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"

ENTITIES: dict[str, tuple[str, Callable[[str], int] | None]] = {
    "email": (r"\b[A-Za-z0-9][\w.%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,4}[A-Za-z]{2,24}\b", None),
    "credit_card": (
        r"\b[2-6]\d{3}[ -]?\d{3,4}[ -]?\d{3,4}[ -]?\d{3,5}(?:[ -]?\d{3})?\b",
        checksums.credit_card,
    ),
    "iban": (
        r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b",
        checksums.iban,
    ),
    "us_ssn": (r"\b\d{3}-\d{2}-\d{4}\b", checksums.us_ssn),
    "ip": (
        rf"\b(?:{_OCTET}\.){{3}}{_OCTET}\b"
        r"|\b[0-9A-Fa-f]{1,4}:[0-9A-Fa-f:]{1,40}[0-9A-Fa-f]\b",
        checksums.ip,
    ),
    "phone": (
        r"\+\d{1,3}(?:[ .-]?\(?\d{1,4}\)?){2,6}\b"
        r"|\(\d{3}\) ?\d{3}[ .-]\d{4}\b|\b\d{3}[ .-]\d{3}[ .-]\d{4}\b",
        checksums.phone,
    ),
}


class Pii:
    """Takes personal data out, or ends the answer at some; the stop_reason is the entity."""

    def __init__(
        self,
        *,
        entities: list[str] | None = None,
        engine: str = "patterns",
        action: str = "redact",
        replacement: str | None = None,
        presidio: dict[str, Any] | None = None,
    ) -> None:
        """Without `entities` all that the engine knows; without `replacement` the entity's name in
        brackets. `presidio` is for that engine alone (tandem_guardrails.presidio). Raises
        LoadError.
        """
        arguments.one_of("engine", engine, ("patterns", "presidio"))
        chosen_action = action_of("action", action)
        if replacement is not None:
            arguments.text("replacement", replacement, empty=True)
        self._filter: PresidioFilter | PatternFilter
        if engine == "presidio":
            self._filter = PresidioFilter(
                entities=None if entities is None else arguments.texts("entities", entities),
                action=chosen_action,
                replacement=replacement,
                **arguments.mapping("presidio", presidio or {}, PresidioFilter.KEYS),
            )
        elif presidio is not None:
            raise LoadError("presidio is set, but engine is patterns")
        else:
            self._filter = PatternFilter(
                [
                    Pattern(
                        name=entity,
                        pattern=ENTITIES[entity][0],
                        accept=ENTITIES[entity][1],
                        action=chosen_action,
                        replacement=f"[{entity}]" if replacement is None else replacement,
                    )
                    for entity in arguments.some_of("entities", entities, ENTITIES)
                ],
                max_match=MAX_MATCH,
            )
        self.close = self._filter.close
        self.resumable = engine == "patterns"

    def __call__(self, chunk: Chunk) -> Verdict:
        return self._filter(chunk)
