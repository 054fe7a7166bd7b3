"""What hooks answer, and how they fail: what counts as a verdict, and what is said of one that
does not.
"""

from __future__ import annotations

from typing import Any

from tandem.hooks.contract import Verdict
from tandem.hooks.counters import HookVerdict
from tandem.usercode.call import Failed


class InvalidVerdictError(Exception):
    """Says what is wrong with it, without quoting any text."""


def is_plain(answer: Any) -> bool:
    """Whether it is a verdict made of Python's own types, so that looking at it runs no code of the
    hook's.
    """
    if type(answer) is not Verdict:
        return False
    types = (type(answer.action), type(answer.text), type(answer.reason))
    if types != (str, str, str):
        return False
    return type(answer.hold_tokens) is int and type(answer.show_tokens) is bool


def plain(answer: Any) -> Verdict:
    """The same verdict, made of Python's own types. Raises InvalidVerdictError, or whatever the
    answer's own types raise: call it as user code.
    """
    if not issubclass(type(answer), Verdict):
        raise InvalidVerdictError(f"it answered {type(answer).__name__}, not a verdict")
    action = _plain_text(answer.action) or ""
    text = _plain_text(answer.text)
    if text is None:
        raise InvalidVerdictError(f"its verdict's text is {type(answer.text).__name__}, not str")
    reason = _plain_text(answer.reason)
    if reason is None and action == "terminate":
        raise InvalidVerdictError(f"terminate's reason is {type(answer.reason).__name__}, not str")
    held = answer.hold_tokens
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
    _check_unicode(verdict.text, "its verdict's text")
    if action == "emit":
        return "emit" if verdict.text == text else "rewrite"
    if action == "suppress":
        return "suppress"
    if action == "terminate":
        _check_unicode(verdict.reason, "terminate's reason")
        return "terminate"
    raise InvalidVerdictError("it answered an unknown action")


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
    return "it took longer than its timeout" if failed.overdue else failed.kind
