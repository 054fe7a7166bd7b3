"""Regular expressions that take linear time whatever the pattern: RE2, from the package google-re2.

Syntax: https://github.com/google/re2/wiki/Syntax. `\\b`, `\\d`, `\\w` and `\\s` know ASCII only.
"""

from __future__ import annotations

from typing import Any

import re2

from tandem.errors import LoadError

_MAX_MEMORY = 64 * 2**20
_PROBES = ("", "a", " ", "a b", "-\n-", "é")


def compiled(pattern: str, what: str) -> Any:
    """An re2 pattern: `search(text, pos)` and `match(text, pos)` as in the standard library.

    Raises LoadError: RE2 does not take the pattern.
    """
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MAX_MEMORY
    try:
        found = re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        words = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise LoadError(f"{what} is not a pattern that RE2 takes: {words}") from error
    except UnicodeEncodeError as error:
        raise LoadError(f"{what} is not valid Unicode") from error
    return found


def compiled_without_empty_matches(pattern: str, what: str) -> Any:
    """`compiled`, for what is searched in answers. Raises LoadError."""
    found = compiled(pattern, what)
    for probe in _PROBES:
        match = found.search(probe)
        if match is not None and match.start() == match.end():
            raise LoadError(f"{what} matches the empty text: nothing could be found by it")
    return found
