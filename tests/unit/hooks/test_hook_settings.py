"""What a settings file may say of hooks, and what it is told when it is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from one_case import one_case

from tandem.errors import ConfigError
from tandem.hooks.settings import HookEntry, parse


def test_one_path_is_a_chain_of_one() -> None:
    (entry,) = parse("a.B", {}).chain
    assert entry == HookEntry(path="a.B", name="a.B")
    assert (entry.on_error, entry.shadow, entry.timeout_ms) == ("closed", False, 1000.0)


def test_a_chain_keeps_its_order_and_every_field() -> None:
    settings = parse(
        "",
        {
            "workers": 2,
            "chain": [
                "a.B",
                {
                    "path": "c.D",
                    "name": "d",
                    "config": {"x": 1},
                    "timeout_ms": 50,
                    "on_error": "open",
                    "shadow": True,
                    "phases": ["decode"],
                    "models": ["m"],
                },
            ],
        },
    )
    assert settings.workers == 2
    assert [entry.name for entry in settings.chain] == ["a.B", "d"]
    assert settings.chain[1].config == {"x": 1}
    assert [entry.name for entry in settings.for_worker("prefill", "m").chain] == ["a.B"]
    assert [entry.name for entry in settings.for_worker("decode", "other").chain] == ["a.B"]
    assert [entry.name for entry in settings.for_worker("decode", "m").chain] == ["a.B", "d"]


@pytest.mark.promise("S0-027")
@one_case(
    ("hooks", "words"),
    [
        ({"chains": []}, "hooks: .*unknown field `chains`"),
        ({"workers": -1}, "hooks.workers"),
        ({"workers": True}, "hooks.workers"),
        ({"chain": "a.B"}, "hooks.chain: Expected `array`"),
        ({"chain": [7]}, r"hooks.chain\[0\]: Expected `str | object`"),
        ({"chain": [{}]}, r"hooks.chain\[0\]: .*missing required field `path`"),
        ({"chain": [{"path": "a.B", "time": 1}]}, r"hooks.chain\[0\]: .*unknown field `time`"),
        ({"chain": [{"path": ""}]}, r"hooks.chain\[0\].path"),
        ({"memory_mb": 512}, "hooks.memory_mb"),
        ({"workers": 1, "memory_mb": 7}, "hooks.memory_mb"),
        ({"chain": [{"path": "a.B", "config": [1]}]}, r"hooks.chain\[0\].config"),
        ({"chain": [{"path": "a.B", "timeout_ms": 0}]}, r"hooks.chain\[0\].timeout_ms"),
        ({"chain": [{"path": "a.B", "on_error": "ignore"}]}, r"hooks.chain\[0\].on_error"),
        ({"chain": [{"path": "a.B", "shadow": "yes"}]}, r"hooks.chain\[0\].shadow"),
        ({"chain": [{"path": "a.B", "phases": []}]}, r"hooks.chain\[0\].phases"),
        ({"chain": [{"path": "a.B", "phases": ["both"]}]}, r"hooks.chain\[0\].phases"),
        ({"chain": [{"path": "a.B", "models": "m"}]}, r"hooks.chain\[0\].models"),
        ({"chain": ["a.B", "a.B"]}, "two hooks named 'a.B'"),
    ],
)
def test_what_is_wrong_is_named(hooks: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse("", hooks)


@pytest.mark.promise("S0-027")
def test_both_ways_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="both set"):
        parse("a.B", {"chain": []})
