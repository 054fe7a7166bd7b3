"""What hooks answer, and how they fail: what counts as a verdict, and what is said of one that
does not.
"""

from __future__ import annotations

from typing import Any

from tandem.hooks.contract import Verdict
from tandem.hooks.tally import Counted
from tandem.usercode.deadline import OverdueError


class InvalidVerdictError(Exception):
    """Says what is wrong with it, without quoting any text."""


def counted_verdict(verdict: Any, text: str) -> Counted:
    """How a verdict is counted. Raises InvalidVerdictError for one that cannot be applied
    (S0-020).
    """
    if not isinstance(verdict, Verdict):
        raise InvalidVerdictError(f"it answered {type(verdict).__name__}, not a verdict")
    action = verdict.action
    _check_text(verdict.text, "its verdict's text")
    if action == "emit":
        return "emit" if verdict.text == text else "rewrite"
    if action == "suppress":
        return "suppress"
    if action == "terminate":
        _check_text(verdict.reason, "terminate's reason")
        return "terminate"
    raise InvalidVerdictError("it answered an unknown action")


def _check_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise InvalidVerdictError(f"{what} is {type(text).__name__}, not str")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidVerdictError(f"{what} is not valid Unicode") from None


def counted_failure(error: BaseException) -> Counted:
    return "timeout" if isinstance(error, OverdueError | TimeoutError) else "error"


def words_of(error: BaseException) -> str:
    """Names what went wrong without the hook's own words, which may quote the text."""
    if isinstance(error, InvalidVerdictError):
        return str(error)
    if isinstance(error, OverdueError | TimeoutError):
        return "it took longer than its timeout"
    return type(error).__name__
