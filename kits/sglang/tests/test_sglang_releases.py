"""One code base for several releases of SGLang: what differs is found by looking."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.errors import ConfigError, StartError
from tandem_sglang import argument_rules, kept, options, releases

GROUPED = {"tp_size": 4, "dp_size": 2, "enable_dp_attention": True}
FROM_22 = frozenset({*GROUPED, "attn_dp_size"})


def resolves(**arguments: Any) -> Any:
    return SimpleNamespace(resolved_dict=lambda: dict(arguments))


@pytest.mark.promise("S5-681")
def test_groups_of_attention_have_the_name_that_the_release_has() -> None:
    assert releases.named_for(GROUPED, frozenset(GROUPED)) == GROUPED
    assert releases.named_for(GROUPED, FROM_22) == {"tp_size": 4, "attn_dp_size": 2}
    assert releases.named_for({"tp_size": 4}, FROM_22) == {"tp_size": 4}


@pytest.mark.promise("S5-681")
def test_groups_that_a_release_resolves_otherwise_are_the_ones_that_were_asked_for() -> None:
    was = resolves(tp_size=4, dp_size=2, enable_dp_attention=True)
    now = resolves(tp_size=4, dp_size=1, attn_dp_size=2, enable_dp_attention=True)
    for each in (was, now):
        kept.check(GROUPED, releases.resolved(each))
    changed = resolves(tp_size=4, dp_size=1, attn_dp_size=1, enable_dp_attention=False)
    with pytest.raises(StartError, match="SGLang changes dp_size from 2 to 1"):
        kept.check(GROUPED, releases.resolved(changed))


@pytest.mark.promise("S5-682")
def test_an_argument_that_no_table_has_is_refused_by_name_unless_it_is_asked_for() -> None:
    raw = {"server_args": json.dumps({"of_0_5_24": 1, "api_key": "a"})}
    with pytest.raises(ConfigError, match=r"of_0_5_24: SGLang 0\.5\.21 to 0\.5\.23 has no such"):
        options.parse(raw)
    with pytest.raises(ConfigError) as refused:
        options.parse({**raw, "unlisted_server_args": True})
    assert "api_key" in str(refused.value)
    assert "of_0_5_24" not in str(refused.value)
    raw = {"server_args": '{"of_0_5_24": 1}', "unlisted_server_args": True}
    assert options.parse(raw).extra == {"of_0_5_24": 1}


@pytest.mark.promise("S5-682")
def test_the_release_that_runs_decides_whether_it_has_an_argument() -> None:
    given = {"of_0_5_24": 1, "watchdog_timeout": 9}
    assert releases.check_known(given, frozenset(given), "0.5.24") == ["of_0_5_24"]
    with pytest.raises(StartError, match=r"SGLang 0\.5\.23, which is .* no argument of_0_5_24:"):
        releases.check_known(given, frozenset({"watchdog_timeout"}), "0.5.23")
    assert argument_rules.unlisted(["tp_size", "api_key", "quantization"]) == []
