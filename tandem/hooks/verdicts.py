"""What hooks answer, and how they fail: what counts as a verdict, and what is said of one that
does not.
"""

from __future__ import annotations

import inspect
from typing import Any

from tandem.hooks.contract import Verdict
from tandem.hooks.counters import HookVerdict
from tandem.hooks.settings import MAX_TEXT_CHARS
from tandem.usercode.call import Failed, name_of

MAX_REASON_CHARS = 1000
"""The longest reason of a terminate: it travels with every output of the request."""


class InvalidVerdictError(Exception):
    """Says what is wrong with it, without quoting any text."""


def is_plain(answer: Any) -> bool:
    """Whether it is a verdict made of Python's own types, so that looking at it runs no code of the
    hook's. Raises AttributeError for a verdict that lacks a field.
    """
    given: Any = answer
    return (
        type(answer) is Verdict
        and type(given.action) is str
        and type(given.text) is str
        and type(given.reason) is str
        and type(given.hold_tokens) is int
        and type(given.show_tokens) is bool
    )


def plain(answer: Any) -> Verdict:
    """The same verdict, made of Python's own types. Raises InvalidVerdictError, or whatever the
    answer's own types raise: call it as user code.
    """
    if not issubclass(type(answer), Verdict):
        if inspect.iscoroutine(answer):
            answer.close()  # else Python complains that nobody awaited it
        raise InvalidVerdictError(f"the hook answered {name_of(type(answer))}, not a verdict")
    given, given_reason, held = answer.text, answer.reason, answer.hold_tokens
    action = _plain_text(answer.action) or ""
    text = _plain_text(given)
    if text is None:
        raise InvalidVerdictError(f"the verdict's text is {name_of(type(given))}, not str")
    reason = _plain_text(given_reason)
    if reason is None and action == "terminate":
        raise InvalidVerdictError(f"terminate's reason is {name_of(type(given_reason))}, not str")
    if type(held) is not int:
        held = 0 if held == 0 else -1
    return Verdict(action, text, reason or "", held, bool(answer.show_tokens))  # type: ignore[arg-type]


def _plain_text(text: Any) -> str | None:
    """Without calling what a subclass of str defines; None: it is no text."""
    return str.__str__(text) if issubclass(type(text), str) else None


def counted_as(verdict: Verdict, text: str) -> HookVerdict:
    """How a plain verdict on `text` is counted. Raises InvalidVerdictError for one that cannot be
    applied (S0-020).
    """
    action = verdict.action
    if len(verdict.text) > MAX_TEXT_CHARS:
        raise InvalidVerdictError(f"the verdict's text is longer than {MAX_TEXT_CHARS} characters")
    _check_unicode(verdict.text, "the verdict's text")
    if action == "emit":
        return "emit" if verdict.text == text else "rewrite"
    if action == "suppress":
        return "suppress"
    if action == "terminate":
        if len(verdict.reason) > MAX_REASON_CHARS:
            raise InvalidVerdictError(
                f"terminate's reason is longer than {MAX_REASON_CHARS} characters"
            )
        _check_unicode(verdict.reason, "terminate's reason")
        return "terminate"
    raise InvalidVerdictError("the hook answered an unknown action")


def _check_unicode(text: str, what: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidVerdictError(f"{what} is not valid Unicode") from None


def words_of(failed: Failed) -> str:
    """Names what went wrong without the hook's own words, which may quote the text."""
    if type(failed.error) is InvalidVerdictError:
        return str(failed.error)
    return "the hook took longer than its timeout" if failed.overdue else failed.kind
