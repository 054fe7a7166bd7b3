"""The commands that kits bring: listed without the kits, and found by their entry points."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys

import product_packages
import pytest

from tandem import cli, launching
from tandem.cli import commands
from tandem.cli.plan import COMPONENTS
from tandem.version import tandem_version

LISTED_WITHOUT_A_KIT = """
import sys
from tandem import cli
try:
    cli.main(["--help"])
finally:
    heavy = {"asyncio", "grpc", "importlib.metadata", "msgspec", "tandem_tools", "typing", "yaml"}
    print(sorted(heavy & sys.modules.keys()))
"""


def test_kits_offer_the_commands_that_are_listed_and_no_others() -> None:
    assert product_packages.offered(commands.GROUP) == sorted(cli._HELP.keys() - cli._OWN.keys())


@pytest.mark.parametrize("name", product_packages.offered(commands.GROUP))
def test_a_command_of_a_kit_shows_its_options(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: tandem {name} ")
    assert " --" in shown


@pytest.mark.promise("S5-704")
def test_help_lists_all_commands_and_imports_none() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", LISTED_WITHOUT_A_KIT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.stderr == ""
    words = " ".join(shown.stdout.split())
    assert all(f"{name} {text}" in words for name, text in cli._HELP.items())
    assert all(f"{group}: " in words for group in cli._GROUPS)
    assert shown.stdout.endswith("\n[]\n")


def test_a_command_whose_kit_is_not_installed_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "GROUP", "tandem.no_such_group")
    assert cli.main(["bench", "--url", "http://127.0.0.1:1"]) == 2
    said = "tandem: `tandem bench` needs: pip install tandem-tools\n"
    assert capsys.readouterr() == ("", said)


def test_a_kit_that_cannot_be_imported_is_said_and_not_shown_as_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tandem_tools.bench", None)
    assert cli.main(["bench"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("tandem: 'tandem_tools.bench:COMMAND': ")


@pytest.mark.promise("S5-758")
@pytest.mark.parametrize("name", cli._HELP)
def test_a_command_shows_an_example_that_its_own_parser_takes(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert cli._HELP[name] in " ".join(shown.split())
    example = shown.rpartition("example:\n")[2]
    words = shlex.split(re.split(r"&&|>>|\)|#", example.replace("source <(", ""))[0])
    assert words[:2] == ["tandem", name]
    assert callable(cli.parsed(words[1:]).run)


@pytest.mark.promise("S5-758")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sttus"], "tandem: error: there is no command sttus; did you mean status?"),
        (["qqq"], "tandem: error: there is no command qqq"),
        (["up", "--prot=1"], "tandem up: error: unknown: --prot=1; did you mean --port?"),
        (["down", "now"], "tandem down: error: unknown: now"),
        (["--nothing", "up"], "tandem up: error: unknown: --nothing"),
    ],
)
def test_a_command_or_option_that_is_not_there_is_refused_with_a_hint(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"{said}\n")


@pytest.mark.promise("S5-758")
@pytest.mark.parametrize("program", COMPONENTS)
def test_every_program_tells_its_version(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["", "--version"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(launching.module_of(program)).main()
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tandem-{program.replace('_', '-')} {tandem_version()}\n"
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"tandem {tandem_version()}\n"
