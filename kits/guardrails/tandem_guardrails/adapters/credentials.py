"""A key of a guardrail service: from a file, or from an environment variable. Never from YAML."""

from __future__ import annotations

import logging
from pathlib import Path

from tandem.config import environment
from tandem.errors import LoadError

log = logging.getLogger(__name__)


class ApiKey:
    """One secret. Its value is in no message."""

    def __init__(self, *, file: str = "", variable: str = "") -> None:
        """At most one of both; neither: no key. Raises LoadError."""
        if file and variable:
            raise LoadError("api_key_file and api_key_env are both set: give one")
        self._file = Path(file) if file else None
        self.value = ""
        """The key; empty: the server needs none."""
        if self._file is not None:
            self.value = _read(self._file)
        elif variable:
            self.value = _checked(environment().get(variable, ""), f"variable {variable}")

    def reload(self) -> None:
        """Read the file again, which may have been renewed; what cannot be read changes nothing."""
        if self._file is None:
            return
        try:
            self.value = _read(self._file)
        except LoadError as error:
            log.warning("a guardrail's key could not be renewed", extra={"reason": str(error)})

    def __repr__(self) -> str:
        return f"ApiKey({'set' if self.value else 'none'})"


def _read(path: Path) -> str:
    try:
        content = path.read_text(encoding="ascii")
    except OSError as error:
        raise LoadError(f"cannot read the key file {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise LoadError(f"the key file {path} holds no key: it is not ASCII") from None
    return _checked(content, f"file {path}")


def _checked(content: str, where: str) -> str:
    key = content.strip()
    if not key:
        raise LoadError(f"the key in the {where} is empty, or not there")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise LoadError(f"the key in the {where} has characters that no key has")
    return key
