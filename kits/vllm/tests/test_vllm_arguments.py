"""No argument of vLLM is ignored without a word: each is passed on, or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import generate_vllm_page
import pytest
from one_case import one_case

from tandem.errors import ConfigError
from tandem_vllm import engine_arguments, options

_NAMES = """
import dataclasses, json
from vllm.engine.arg_utils import AsyncEngineArgs
print(json.dumps([field.name for field in dataclasses.fields(AsyncEngineArgs)]))
"""


def classified() -> list[str]:
    tables = (
        engine_arguments.OWNED,
        engine_arguments.REFUSED,
        engine_arguments.PASSED,
    )
    return [name for table in tables for names in table.values() for name in names]


@pytest.mark.promise("S5-853")
def test_an_argument_has_one_fate() -> None:
    assert [name for name, count in Counter(classified()).items() if count > 1] == []


@pytest.mark.promise("S5-853")
@one_case("why", [*engine_arguments.OWNED, *engine_arguments.REFUSED])
def test_what_must_not_be_given_is_refused_by_name_with_the_reason(why: str) -> None:
    for name in (engine_arguments.OWNED | engine_arguments.REFUSED)[why]:
        with pytest.raises(ConfigError) as refused:
            options.parse({"engine_args": json.dumps({name: 1})})
        assert f" {name}: " in str(refused.value)
        assert str(refused.value).endswith(why)


@pytest.mark.promise("S5-853")
def test_what_passes_through_reaches_vllm_and_nothing_unknown_does() -> None:
    for names in engine_arguments.PASSED.values():
        given = dict.fromkeys(names, 1)
        assert options.parse({"engine_args": json.dumps(given)}).extra == given
    with pytest.raises(ConfigError, match="speed: Tandem knows no such argument"):
        options.parse({"engine_args": '{"speed": 1}'})


def test_the_page_lists_them_all() -> None:
    """Else: scripts/generate_vllm_page.py."""
    text = generate_vllm_page.PAGE.read_text(encoding="utf-8")
    assert generate_vllm_page.page(text) == text


@pytest.mark.vllm
@pytest.mark.promise("S5-853")
def test_all_arguments_of_vllm_are_in_the_tables() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NAMES],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    assert set(json.loads(done.stdout.splitlines()[-1])) <= set(classified())
