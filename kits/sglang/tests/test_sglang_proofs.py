"""What a started engine proves of units, against a stand-in for it that counts otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tandem.engine.base import Ending, EngineUnit, UnitState
from tandem.errors import ContradictionError, EngineError
from tandem_sglang import fitting, proofs
from tandem_sglang.chunks import Ended
from tandem_sglang.proofs import Generated
from tandem_sglang.units import UNITS

pytestmark = pytest.mark.asyncio
_DONE = Ended(Ending.LENGTH)
TOKENS = 8


class Engine:
    """Answers as an engine would that keeps its promises, or breaks one."""

    def __init__(
        self,
        *,
        chosen_first: bool = True,
        draws: Sequence[int] = (),
        late: int = 0,
        made: bool = True,
        drift: float = 0.0,
        form: Ended | None = None,
        beside: Ended = _DONE,
    ) -> None:
        """`draws`: the seeded tokens. `late`: outputs that penalties do not count. `made`: they
        count what another engine made. `drift`: what logits differ by from one request to the next.
        """
        self._draws, self._late, self._made = draws, late, made
        self._first = [] if chosen_first else [None]
        self._drift = drift
        self._asked = 0
        self._form = form or Ended(Ending.FAILED, ContradictionError("no further token"))
        self._beside = beside

    async def ask(self, sampling: Mapping[str, Any], number: int = 0) -> Generated:
        if "regex" in sampling:
            return Generated([], [], self._form)
        if "temperature" in sampling:
            return Generated([*self._first, *self._draws[len(self._first) :]], [], _DONE)
        if "logit_bias" in sampling:
            return self._penalised(sampling)
        return Generated([1], [], self._beside)

    def _penalised(self, sampling: Mapping[str, Any]) -> Generated:
        tokens = [*self._first, *[proofs._CHOSEN] * (TOKENS - len(self._first))]
        put_out: list[Any] = [2, 3] if self._made else []
        second = []
        self._asked += 1
        for token in tokens:
            count = put_out[: max(0, len(put_out) - self._late)].count(proofs._CHOSEN)
            taken = sampling.get("frequency_penalty", 0.0) * count
            taken += sampling.get("presence_penalty", 0.0) * (count > 0)
            second.append(-20.0 + taken + self._drift * self._asked)
            put_out.append(token)
        return Generated(tokens, second, _DONE)


def drawn(seed: int = proofs._SEED, shift: int = 0) -> list[int]:
    """What a seed draws of the candidates. `shift`: of the positions."""
    first = len(proofs.PROMPT) - 1 + shift
    found = []
    for position in range(first, first + TOKENS):
        noise = [proofs._noise(seed, position, each) for each in range(proofs._CANDIDATES)]
        found.append(noise.index(max(noise)))
    return found


@pytest.mark.promise("S5-809")
@pytest.mark.parametrize("chosen_first", [True, False])
@pytest.mark.parametrize(
    "proof", [proofs.drawn_by_seed, proofs.penalties_counted, proofs.forms_fail_alone]
)
async def test_an_engine_that_keeps_its_promises_proves_them(
    proof: proofs.Proof, chosen_first: bool
) -> None:
    assert await proof(Engine(draws=drawn(), chosen_first=chosen_first).ask) == ""


@pytest.mark.promise("S5-809")
@pytest.mark.parametrize("draws", [drawn(seed=8), drawn(shift=1), drawn(shift=-1), [1] * TOKENS])
async def test_a_draw_by_another_seed_or_position_is_told(draws: list[int]) -> None:
    assert "drew token" in await proofs.drawn_by_seed(Engine(draws=draws).ask)


@pytest.mark.promise("S5-809")
@pytest.mark.parametrize("how", [{"late": 1}, {"late": 100}, {"made": False}])
async def test_penalties_that_miss_an_output_are_told(how: dict[str, Any]) -> None:
    assert "outputs of a token cost" in await proofs.penalties_counted(Engine(**how).ask)


async def test_logits_that_are_not_the_same_each_time_tell_nothing_of_penalties() -> None:
    assert await proofs.penalties_counted(Engine(drift=1.5).ask) == ""


@pytest.mark.promise("S5-809")
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"form": _DONE}, "did not end"),
        ({"form": Ended(Ending.FAILED, EngineError("the scheduler ended"))}, "did not end"),
        ({"beside": Ended(Ending.FAILED, ContradictionError("no token"))}, "beside"),
    ],
)
async def test_a_form_that_fails_otherwise_is_told(how: dict[str, Any], said: str) -> None:
    assert said in await proofs.forms_fail_alone(Engine(**how).ask)


async def test_the_plain_count_of_noise_is_that_of_the_sampler() -> None:
    """As seeds.py says with torch, also of a seed that is longer than a word."""
    of_sampler = {(7, 3, 5): 0.26499361969048024, (2**40 + 5, 100, 999): -0.6076525011533657}
    for of, noise in of_sampler.items():
        assert math.isclose(proofs._noise(*of), noise, rel_tol=1e-12)


def _units() -> tuple[EngineUnit, ...]:
    return tuple(
        EngineUnit(name=unit.name, promise=unit.promise, state=UnitState.KEPT) for unit in UNITS
    )


@pytest.mark.promise("S5-809")
async def test_a_unit_that_proves_otherwise_counts_as_lacking() -> None:
    found = fitting.withdrawn(_units(), {"seeds": "seed 7 drew token 1"})
    (unit, of_seeds), *others = fitting.lacking(found)
    assert (unit.name, others) == ("seeds", [])
    assert "seed 7 drew token 1" in of_seeds.lacks
    assert of_seeds.without == unit.without
    assert "seeds" not in fitting.proofs(found)
    assert set(fitting.proofs(_units())) == {"seeds", "penalties", "forms"}
