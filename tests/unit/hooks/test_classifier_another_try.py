"""What a classifier says of another try of what it blocks."""

from __future__ import annotations

from typing import Any

import pytest
from one_case import one_case

from tandem.hooks.classifiers.classifier_set import ClassifierSet, Judgement
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.scores import AS_BEFORE
from tandem.hooks.classifiers.settings import ClassifierSettings, RegenerateSettings, Resampling

CONTEXT = ScoringContext(request_id="r", prompt="p", generated_text="t")
REGENERATE = RegenerateSettings(may_set={"temperature": (0, 1), "seed": None})


class Asking:
    """Blocks, and says `again` of another try."""

    name, timeout_ms = "c", 2000

    def __init__(self, again: Any, *, blocking: bool = True, block: bool = True) -> None:
        self.blocking = blocking
        self._answer = {"block": block, "replacement": "mine", "regenerate": again}

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        return self._answer


async def judge(*hooks: Any, regenerate: RegenerateSettings | None = REGENERATE) -> Judgement:
    made = ClassifierSet(ClassifierSettings(hold_back="all", regenerate=regenerate), model="m")
    for hook in hooks:
        made.register_external_classifier_hook(hook)
    return await made.judge(CONTEXT)


@pytest.mark.promise("S4-128")
@pytest.mark.parametrize(
    ("said", "again", "sampling"),
    [
        (None, None, AS_BEFORE),
        (True, True, AS_BEFORE),
        (False, False, AS_BEFORE),
        ({}, True, AS_BEFORE),
        ({"temperature": 0}, True, Resampling(temperature=0)),
        ({"temperature": 1, "seed": 7}, True, Resampling(temperature=1, seed=7)),
        ({"temperature": None}, True, AS_BEFORE),
    ],
)
async def test_it_says_whether_and_how(said: Any, again: bool | None, sampling: Any) -> None:
    judgement = await judge(Asking(said))
    assert (judgement.regenerate, judgement.sampling) == (again, sampling)
    assert (judgement.failed, judgement.replacement) == (False, "mine")


@pytest.mark.promise("S4-129")
@one_case(
    "said",
    [
        {"top_p": 0.5},
        {"temperature": 1.5},
        {"temperature": -1},
        {"temperature": "0"},
        {"temperature": float("nan")},
        {"temperature": True},
        {"seed": 0.5},
        {"seed": 2**63},
        {"max_tokens": 10_000},
        {"temperature": 0, 1: 2},
        {"temperature": object},
    ],
    ids=str,
)
async def test_sampling_that_it_may_not_set_fails_closed(said: Any) -> None:
    judgement = await judge(Asking(said))
    assert judgement.blocked
    assert judgement.failed
    assert judgement.scores == {"c": {"error": "invalid_answer"}}
    assert judgement.sampling == AS_BEFORE


async def test_the_first_that_blocks_decides() -> None:
    first, second = Asking({"temperature": 0}), Asking({"temperature": 1})
    second.name = "d"  # type: ignore[misc]
    assert (await judge(first, second)).sampling == Resampling(temperature=0)


@pytest.mark.parametrize(
    ("hook", "regenerate"),
    [
        (Asking({"top_p": 2}), None),
        (Asking({"top_p": 2}, blocking=False), REGENERATE),
        (Asking({"top_p": 2}, block=False), REGENERATE),
    ],
    ids=["a deployment that makes nothing again", "one that annotates", "one that lets it pass"],
)
async def test_elsewhere_it_is_a_score_like_any_other(
    hook: Asking, regenerate: RegenerateSettings | None
) -> None:
    judgement = await judge(hook, regenerate=regenerate)
    assert judgement.regenerate is None
    assert judgement.scores["c"]["regenerate"] == {"top_p": 2}
