"""The audit log's settings: what is wrong is named with its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from one_case import one_case

from tandem.errors import ConfigError
from tandem.hooks.audit import AuditLog, AuditSettings, parse


def test_no_settings_mean_no_audit_log() -> None:
    assert parse({}) is None


def test_a_path_is_enough() -> None:
    assert parse({"path": "a.jsonl"}) == AuditSettings(path="a.jsonl")


def test_every_field_is_taken() -> None:
    given: dict[str, Any] = {
        "path": "a.jsonl",
        "content": "full",
        "key_file": "key",
        "max_bytes": 200_000,
        "files": 3,
        "passes": True,
        "on_full": "fail",
    }
    assert parse(given) == AuditSettings(**given)


@one_case(
    ("given", "words"),
    [
        ({"content": "hash"}, "audit: .*missing required field `path`"),
        ({"path": 3}, "audit.path: Expected `str`"),
        ({"path": "a", "key_file": 3}, "audit.key_file: Expected `str`"),
        ({"path": "a", "content": "everything"}, "audit.content: Invalid enum value"),
        ({"path": "a", "max_bytes": 1000}, "audit.max_bytes: Expected `int` >= 131072"),
        ({"path": "a", "max_bytes": True}, "audit.max_bytes: Expected `int`"),
        ({"path": "a", "files": 0}, "audit.files: Expected `int` >= 1"),
        ({"path": "a", "files": "8"}, "audit.files: Expected `int`"),
        ({"path": "a", "passes": "no"}, "audit.passes: Expected `bool`"),
        ({"path": "a", "on_full": "wait"}, "audit.on_full: Invalid enum value"),
        ({"path": "a", "colour": "red"}, "audit: .*unknown field `colour`"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(given)


def _log(**given: Any) -> AuditLog:
    settings = parse(given)
    assert settings is not None
    return AuditLog(settings, worker="w", model="m")


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"audit.path: cannot write .*No such file"):
        _log(path=str(tmp_path / "absent" / "a.jsonl")).start()
    with pytest.raises(ConfigError, match=r"audit.path: cannot write .*Is a directory"):
        _log(path=str(tmp_path)).start()
    with pytest.raises(ConfigError, match="no regular file"):
        _log(path="/dev/null").start()


def test_a_key_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"audit.key_file: cannot read .*No such file"):
        _log(path="a", key_file=str(tmp_path / "absent"))
    short = tmp_path / "key"
    short.write_text("short\n")
    with pytest.raises(ConfigError, match="at least 16 bytes"):
        _log(path="a", key_file=str(short))
