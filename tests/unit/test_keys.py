"""Keys: their file, what it is read as, minutes, and the command that makes them."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tandem import cli
from tandem.errors import ConfigError
from tandem.keys import MAX_NAME
from tandem.keys.file import MAX_BYTES, MAX_KEYS, KeyFile, parse
from tandem.keys.minute import Minute
from tandem.keys.ring import KeyRing, digest_of, new_key


def line(name: str = "acme", *, key: str | None = None, **limits: Any) -> str:
    digest = digest_of((key or f"key of {name}").encode())
    return json.dumps({"name": name, "sha256": digest, **limits}) + "\n"


def write(path: Path, content: str) -> None:
    """As a Secret is replaced: another file under the name."""
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    os.replace(fresh, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.jsonl"


def names(file: KeyFile) -> list[str]:
    return [grant.name for grant in file.content]


def settle(file: KeyFile) -> bool:
    """Look until a change has been taken."""
    return file.look() | file.look()


# --- what a line says ---


def test_a_key_has_a_name_a_hash_and_no_limits_but_that_of_priority() -> None:
    (grant,) = parse(line().encode(), "f")
    assert (grant.name, grant.digests) == ("acme", (digest_of(b"key of acme"),))
    assert (grant.requests_per_minute, grant.models, grant.weight) == (None, None, 1)
    assert grant.max_priority == 0


def test_comments_and_empty_lines_are_passed_over_and_two_hashes_are_one_key() -> None:
    two = json.dumps({"name": "b", "sha256": [digest_of(b"old"), digest_of(b"new")]})
    content = f"# ours\n\n  {line('a')}\r\n{two}"
    assert [grant.name for grant in parse(content.encode(), "f")] == ["a", "b"]


BAD = {
    "no JSON": "acme",
    "a list": "[]",
    "no hash": '{"name": "a"}',
    "the key instead of its hash": '{"name": "a", "sha256": "SECRET"}',
    "a hash in capitals": json.dumps({"name": "a", "sha256": digest_of(b"a").upper()}),
    "no hashes": '{"name": "a", "sha256": []}',
    "an unknown field": line(SECRET=1),
    "a name that is empty": line(""),
    "a name with a space": line("a b"),
    "a name with a line feed": line("a\n"),
    "a name that is too long": line("a" * (MAX_NAME + 1)),
    "a plain key's name": line("api-key-1"),
    "a limit of nothing": line(requests_per_minute=0),
    "a limit that is no number": line(tokens_per_minute="SECRET"),
    "a limit beyond all": line(open_requests=2**31),
    "a weight of nothing": line(weight=0),
    "a weight beyond all": line(weight=1001),
    "a priority beyond all": line(max_priority=101),
    "two keys of a name": line("a") + line("a", key="other"),
    "two keys of a hash": line("a", key="same") + line("b", key="same"),
    "nested too deep": "[" * 100_000,
    "no UTF-8": '{"name": "\udcff"}',
}


@pytest.mark.promise("S6-156")
@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_line_that_is_wrong_is_refused_without_being_quoted(content: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(content.encode("utf-8", "surrogateescape"), "file")
    assert "file" in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_limits_hold_at_their_ends() -> None:
    parse(line("a" * MAX_NAME, max_priority=-100, weight=1000, open_requests=1).encode(), "f")


def test_a_file_has_bounds() -> None:
    parse("".join(line(f"k{number}") for number in range(MAX_KEYS)).encode(), "f")
    with pytest.raises(ConfigError, match="10001 keys"):
        parse("".join(line(f"k{number}") for number in range(MAX_KEYS + 1)).encode(), "f")
    with pytest.raises(ConfigError, match="larger"):
        parse(b"#" * (MAX_BYTES + 1), "f")


# --- the file ---


@pytest.mark.promise("S6-151")
@pytest.mark.parametrize("content", ["", "\n", ",", " ", "# none yet\n", "{}"])
def test_without_a_key_in_its_file_nothing_starts(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(ConfigError):
        KeyFile(str(path))


def test_without_its_file_nothing_starts(path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        KeyFile(str(path))


def test_what_is_no_file_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="no file"):
        KeyFile(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="no file"):
        KeyFile(str(path))


def test_a_file_that_changes_is_read_again_once_it_has_settled(path: Path) -> None:
    path.write_text(line("a"))
    file = KeyFile(str(path))
    assert not file.look()
    write(path, line("b"))
    assert not file.look()
    assert names(file) == ["a"]
    assert file.look()
    assert names(file) == ["b"]
    assert not file.look()


@pytest.mark.promise("S6-152")
def test_a_file_that_is_being_written_changes_nothing_yet(path: Path) -> None:
    path.write_text(line("a") + line("b"))
    file = KeyFile(str(path))
    path.write_text("")
    assert not file.look()
    assert file.stale
    path.write_text(line("a"))
    assert not file.look()
    path.write_text(line("a") + line("c"))
    assert not file.look()
    assert (names(file), file.failures, file.stale) == (["a", "b"], 0, True)
    assert file.look()
    assert (names(file), file.failures, file.stale) == (["a", "c"], 0, False)


@pytest.mark.promise("S6-152")
def test_an_emptied_file_revokes_all_keys(path: Path) -> None:
    path.write_text(line("a"))
    file = KeyFile(str(path))
    write(path, "# nobody any more\n")
    assert settle(file)
    assert file.content == ()
    assert (file.failures, file.stale) == (0, False)


@pytest.mark.promise("S6-152")
def test_a_file_of_no_use_leaves_the_last_keys_and_is_told_of_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(line("a"))
    file = KeyFile(str(path))
    with caplog.at_level(logging.INFO):
        write(path, line("a") + "SECRET\n")
        assert not settle(file)
        assert not settle(file)
        assert (names(file), file.failures, file.stale) == (["a"], 1, True)
        path.unlink()
        assert not settle(file)
        assert (names(file), file.failures, file.stale) == (["a"], 2, True)
        write(path, line("b"))
        assert settle(file)
    assert (names(file), file.failures, file.stale) == (["b"], 2, False)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "INFO"]
    assert "SECRET" not in caplog.text


def test_a_file_that_could_not_be_read_for_a_while_is_read_again(path: Path) -> None:
    """It comes back as it was: with the same inode, size and time."""
    path.write_text(line("a"))
    file = KeyFile(str(path))
    away = path.with_suffix(".away")
    os.rename(path, away)
    assert not settle(file)
    assert file.stale
    os.rename(away, path)
    assert not settle(file)
    assert not file.stale


# --- finding ---


def test_a_ring_finds_whole_keys_only() -> None:
    key = new_key()
    ring = KeyRing([(digest_of(key.encode()), "mine"), (digest_of(b"other"), "other")])
    assert ring.find(key.encode()) == "mine"
    for given in (b"", key[:-1].encode(), key.encode() + b"x", digest_of(key.encode()).encode()):
        assert ring.find(given) == ""


# --- minutes ---


def test_a_minute_slides() -> None:
    minute = Minute()
    minute.add(100.5, 3)
    minute.add(100.9, 1)
    minute.add(130.0, 2)
    assert minute.total(160.0) == 6
    assert minute.total(160.99) == 6
    assert minute.total(161.0) == 2
    assert minute.total(191.0) == 0


def test_a_minute_knows_when_there_is_room_again() -> None:
    minute = Minute()
    minute.add(100.0, 3)
    minute.add(130.0, 2)
    assert minute.seconds_until_below(6, 140.0) == 0
    assert minute.seconds_until_below(5, 140.0) == 21.0
    assert minute.seconds_until_below(2, 140.0) == 51.0
    assert minute.seconds_until_below(5, 161.0) == 0


@pytest.mark.promise("S6-153")
def test_in_no_sixty_seconds_is_more_let_through_than_the_limit() -> None:
    minute, let_in = Minute(), []
    for tick in range(4_000):
        now = 7.3 + tick * 0.11
        if not minute.seconds_until_below(20, now):
            minute.add(now, 1)
            let_in.append(now)
    assert len(let_in) > 100
    assert max(sum(at <= each < at + 60 for each in let_in) for at in let_in) == 20


# --- the command ---


def test_the_command_makes_a_line_that_lets_its_key_in(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["keys", "new", "acme", "--tokens-per-minute", "1000", "--models", "m", "--weight"]
    assert cli.main([*arguments, "3"]) == 0
    shown = capsys.readouterr()
    (key,) = [word for word in shown.err.split() if word.startswith("tandem-")]
    (grant,) = parse(shown.out.encode(), "stdout")
    assert KeyRing([(digest, grant) for digest in grant.digests]).find(key.encode()) is grant
    assert (grant.tokens_per_minute, grant.models, grant.weight) == (1000, ("m",), 3)
    assert grant.requests_per_minute is None
    assert key not in shown.out
    assert len(key) > 40


def test_the_command_refuses_what_the_file_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["keys", "new", "two words"]) == 2
    assert cli.main(["keys", "new", "acme", "--weight", "0"]) == 2
    assert capsys.readouterr().out == ""
