"""The commands that kits bring: listed without the kits, and found by their entry points."""

from __future__ import annotations

import subprocess
import sys

import product_packages
import pytest

from tandem import cli
from tandem.cli import commands

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
