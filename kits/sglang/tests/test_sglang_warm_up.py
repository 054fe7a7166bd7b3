"""The requests that an SGLang engine runs before any client's, against a stand-in for SGLang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.engine.base import Role
from tandem.errors import StartError
from tandem_sglang import warm_up
from tandem_sglang.proofs import Ask, Proof
from tandem_sglang.validation import EngineBounds

pytestmark = pytest.mark.asyncio
DONE = {"type": "length"}
ABORTED = {"type": "abort", "message": "no kernel", "status_code": 500}
PROCESSOR = {"type": "abort", "message": "unknown", "err_type": "TandemProcessorError"}


class Manager:
    """Answers each request with one chunk, or never."""

    def __init__(self, *reasons: dict[str, Any] | None) -> None:
        self.asked: list[dict[str, Any]] = []
        self.open_at_start: list[int] = []
        self._open = 0
        self._reasons = list(reasons)

    async def generate_request(self, fields: dict[str, Any], _: None) -> AsyncIterator[Any]:
        self.asked.append(fields)
        self._open += 1
        self.open_at_start.append(self._open)
        await asyncio.sleep(0)
        reason = self._reasons.pop(0) if self._reasons else DONE
        if reason is None:
            await asyncio.Event().wait()
        self._open -= 1
        yield {"output_ids": [1], "meta_info": {"finish_reason": reason}}


async def run(
    manager: Manager,
    role: Role = Role.DECODE,
    *,
    grammars: bool = True,
    processors: bool = False,
    ranks: int = 1,
    seconds: float = 5.0,
    lora_adapters: Sequence[str] = (),
    proofs: Mapping[str, Proof] = {},
) -> dict[str, str]:
    launched: Any = SimpleNamespace(
        manager=manager, messages=SimpleNamespace(GenerateReqInput=dict), processor="ours"
    )
    bounds = EngineBounds(
        role=role,
        context_length=64,
        prompt_length=60,
        vocabulary=1000,
        cannot_sample={},
        scores_prompts=True,
    )
    return await warm_up.run(
        launched,
        bounds,
        grammars=grammars,
        processors=processors,
        ranks=ranks,
        lora_adapters=lora_adapters,
        proofs=proofs,
        seconds=seconds,
    )


async def test_each_kind_of_request_runs_once_by_itself_and_in_one_batch() -> None:
    """What is compiled for one row is compiled again for several."""
    manager = Manager()
    await run(manager)
    assert manager.open_at_start == [1, 1, 1, 1, 2, 3]
    asked = [fields["sampling_params"] for fields in manager.asked]
    for kinds in (asked[:3], asked[3:]):
        assert [params["temperature"] > 0 for params in kinds] == [False, True, False]
        assert [("regex" in params) for params in kinds] == [False, False, True]
    assert len({fields["rid"] for fields in manager.asked}) == 6
    assert len({len(fields["rid"]) for fields in manager.asked}) == 1


@pytest.mark.promise("S5-371")
async def test_each_data_parallel_rank_runs_all_of_them_and_by_their_rooms_too() -> None:
    manager = Manager()
    await run(manager, ranks=3)
    assert manager.open_at_start[:9] == [1, 2, 3] * 3
    assert manager.open_at_start[9:] == list(range(1, 10))
    for rank in range(3):
        asked = [fields for fields in manager.asked if fields["routed_dp_rank"] == rank]
        assert len(asked) == 6
        assert {fields["bootstrap_room"] % 3 for fields in asked} == {rank}
    rooms = {fields["bootstrap_room"] for fields in manager.asked}
    assert len(rooms) == 18
    assert 0 not in rooms


async def test_all_that_sampling_can_do_is_done_once() -> None:
    """Filters, penalties, biases, seeds and log-probabilities: whatever has a kernel of its own."""
    manager = Manager()
    await run(manager)
    drawn = manager.asked[1]
    neutral = {"top_p": 1, "min_p": 0, "logit_bias": None, "repetition_penalty": 1}
    neutral |= {"frequency_penalty": 0, "presence_penalty": 0, "temperature": 0}
    params = drawn["sampling_params"]
    assert [name for name, value in neutral.items() if params[name] == value] == []
    assert params["top_k"] > 1
    assert params["sampling_seed"] is not None
    assert drawn["return_logprob"]
    assert drawn["top_logprobs_num"] > 0


@pytest.mark.parametrize("role", list(Role))
async def test_a_phase_hands_over_to_nobody(role: Role) -> None:
    manager = Manager()
    await run(manager, role)
    rooms = [fields.get("bootstrap_room") for fields in manager.asked]
    hosts = {fields.get("bootstrap_host") for fields in manager.asked}
    if role is Role.AGGREGATED:
        assert (set(rooms), hosts) == ({None}, {None})
    else:
        assert hosts == {"2.2.2.2"}
        assert len(set(rooms)) == len(rooms)
        assert all(rooms)


@pytest.mark.parametrize("reasons", [(ABORTED,), (DONE, DONE, DONE, DONE, ABORTED)])
async def test_a_request_that_fails_fails_the_start(reasons: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(StartError, match="no kernel"):
        await run(Manager(*reasons))


@pytest.mark.parametrize("reasons", [(None,), (DONE, DONE, DONE, None)])
async def test_a_request_that_hangs_fails_the_start_in_time(
    reasons: tuple[dict[str, Any] | None, ...],
) -> None:
    with pytest.raises(StartError, match="warm_up_seconds"):
        await run(Manager(*reasons), seconds=0.05)


@pytest.mark.promise("S5-808")
async def test_a_processor_that_fails_ends_its_request_by_itself_and_beside_others() -> None:
    manager = Manager(DONE, DONE, PROCESSOR, DONE, DONE, PROCESSOR)
    await run(manager, grammars=False, processors=True)
    failing = [fields.get("custom_logit_processor") for fields in manager.asked]
    assert failing == [None, None, "ours"] * 2
    assert manager.open_at_start == [1, 1, 1, 1, 2, 3]


@pytest.mark.promise("S5-808")
@pytest.mark.parametrize(
    "reasons",
    [
        (DONE, DONE, DONE),  # nobody saw the processor fail
        (DONE, DONE, ABORTED),
        (DONE, DONE, PROCESSOR, DONE, PROCESSOR, PROCESSOR),  # it took a neighbour along
    ],
)
async def test_a_start_fails_where_a_processor_that_fails_ends_nothing_or_too_much(
    reasons: tuple[dict[str, Any], ...],
) -> None:
    with pytest.raises(StartError):
        await run(Manager(*reasons), grammars=False, processors=True)


@pytest.mark.promise("S5-809")
@pytest.mark.parametrize("role", list(Role))
async def test_units_are_tried_when_all_is_warm(role: Role) -> None:
    """Each by itself: what one asks for tells nothing of another."""
    seen = []

    async def good(ask: Ask) -> str:
        seen.append((await ask({"temperature": 2.0})).tokens)
        return ""

    async def bad(ask: Ask) -> str:
        await ask({})
        return "as it should not be"

    async def of_another_shape(ask: Ask) -> str:
        return str((await ask({})).second[3])

    manager = Manager()
    units = {"seeds": good, "forms": bad, "penalties": of_another_shape}
    said = await run(manager, role, grammars=False, proofs=units)
    assert set(said) == {"forms", "penalties"}
    assert said["forms"] == "as it should not be"
    assert "cannot be read" in said["penalties"]
    assert seen == [[None] if role is Role.DECODE else [1]]
    assert manager.asked[-3]["sampling_params"]["temperature"] == 2.0
    assert len({fields["rid"] for fields in manager.asked[-3:]}) == 1
    assert manager.open_at_start[-3:] == [1, 1, 1]
