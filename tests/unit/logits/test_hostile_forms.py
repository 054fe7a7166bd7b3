"""Forms that were made to hurt: each is compiled within its limits, or refused as the client's
error, and a good one passes after all of them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hostile_forms import FORMS, TAGGED, chain_of_rules, nested
from logits_bench import MODEL, REGISTRY, generate

from tandem.engine import forms
from tandem.errors import ContradictionError, InvalidRequestError
from tandem.logits.forms.limits import DEFAULT_LIMITS
from tandem.logits.forms.workshop import Workshop, WorkshopLimits
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.logits.state import RequestLogits

WAIT_SECONDS = 300.0
GOOD = ("regex", {"pattern": "(yes|no), [0-9]{3}"})


class Asked:
    """A workshop, asked as a worker's engine asks it."""

    def __init__(self) -> None:
        path = MODEL.tokenizer_path
        assert path is not None
        plan = forms.by_llguidance(path.parent, used_here=forms.EVERY_KIND)
        self.shop = Workshop(plan, MODEL, WorkshopLimits(cpu_seconds=1, seconds=60.0))

    async def compiled(self, name: str, args: dict[str, Any], key: str) -> LogitsProcessorSpec:
        try:
            DEFAULT_LIMITS.check([args])
        except ValueError as error:  # as where a worker reads tasks
            raise InvalidRequestError(str(error)) from error
        entry = LogitsProcessorEntry(name, args, from_client=True, key=key)
        spec = LogitsProcessorSpec((entry,))
        ready = await self.shop.compiled(key, lambda: REGISTRY.form(spec, 0))
        return LogitsProcessorSpec((LogitsProcessorEntry(name, args, True, key, ready),))


def _generated(spec: LogitsProcessorSpec) -> str:
    """How an answer of the form begins; else why its request ends, and no other."""
    try:
        generate(RequestLogits.create(REGISTRY, spec, MODEL), "numpy", steps=8)
    except ContradictionError as error:
        return error.message
    return ""


@pytest.mark.promise("S6-184")
@pytest.mark.timeout(600)
async def test_hostile_forms_are_refused_as_the_clients_or_become_answers() -> None:
    asked = Asked()
    outcomes: dict[str, str] = {}
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            for name, what, args in FORMS + TAGGED:
                key = f"{name}: {what}"
                try:
                    spec = await asked.compiled(name, args, key)
                except InvalidRequestError as error:
                    outcomes[key] = error.message
                else:
                    outcomes[key] = _generated(spec)
            spec = await asked.compiled(*GOOD, key="good")
    finally:
        await asked.shop.close()
    assert generate(RequestLogits.create(REGISTRY, spec, MODEL), "numpy")
    assert asked.shop.outcomes["lost"] == 0
    for key in ("json_schema: all of 59 patterns", "regex: a? 15000 times"):
        assert "too dear" in outcomes[key]
    assert outcomes["json_schema: itself"] == "no answer has this form"
    assert outcomes["ebnf: no word"] == "no answer has this form"
    assert outcomes["tagged: an unknown type, in a call"] == "calls[1].schema: Invalid type: text"
    assert outcomes["tagged: ends an answer"] == "a text holds a token that ends the answer"
    for key in ("all of 59 patterns, in a call", "chain of 4000 refs, in a call"):
        assert "too dear" in outcomes[f"tagged: {key}"]
    for key in (
        "json_schema: 5000 values",
        "choice: one long text",
        "choice: 1024 texts",
        "tagged: 1024 calls",
        "tagged: 64 triggers, each the beginning of the next",
        "tagged: long texts",
        "tagged: nested 60 deep, in a call",
    ):
        assert outcomes[key] == "", key


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("regex", {"pattern": "(" * 65 + "a" + ")" * 65}, "groups nested deeper than 64"),
        ("ebnf", {"grammar": "root ::= " + "(" * 400 + '"a"' + ")" * 400}, "groups nested deeper"),
        ("regex", {"pattern": "a" * 65_537}, "<= 65536"),
        ("ebnf", {"grammar": chain_of_rules(4000)}, "<= 65536"),
        ("json_schema", {"schema": nested(3000)}, "nested too deep"),
        ("tagged", {"calls": [{"schema": nested(3000)}]}, "nested too deep"),
        ("tagged", {"calls": [{"schema": {}}] * 1025}, "<= 1024"),
        ("tagged", {"calls": [{"schema": {}, "end": "a" * 65_537}]}, "<= 65536"),
    ],
)
def test_what_is_plainly_too_large_is_never_given_to_a_compiler(
    name: str, args: dict[str, Any], says: str
) -> None:
    spec = LogitsProcessorSpec((LogitsProcessorEntry(name, args, from_client=True),))
    with pytest.raises(InvalidRequestError, match=says) as error:
        REGISTRY.form(spec, 0)
    assert error.value.param == "logits_processors[0]"


@pytest.mark.promise("S6-184")
def test_a_clients_form_that_was_not_compiled_elsewhere_is_not_used() -> None:
    entry = LogitsProcessorEntry(*GOOD, from_client=True)
    with pytest.raises(Exception, match="was not compiled"):
        REGISTRY.check(LogitsProcessorSpec((entry,)), available=(), model=MODEL)


def test_sequences_share_what_was_compiled_and_go_their_own_ways() -> None:
    spec = LogitsProcessorSpec((LogitsProcessorEntry(*GOOD, from_client=True),))
    form = REGISTRY.form(spec, 0)
    form.prepare(MODEL)
    ready = LogitsProcessorSpec((LogitsProcessorEntry(*GOOD, True, "key", form),))
    first, second = (RequestLogits.create(REGISTRY, ready, MODEL) for _ in range(2))
    one = generate(first, "numpy", seed=1)
    other = generate(second, "numpy", seed=2)
    assert one != other
    assert generate(RequestLogits.create(REGISTRY, ready, MODEL), "numpy", seed=1) == one
