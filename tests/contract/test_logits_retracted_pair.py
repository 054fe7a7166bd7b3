"""Positions and tokens are true where SGLang's decode worker takes sequences out of its batch again
and again: their KV goes to the host's memory and back.
"""

from __future__ import annotations

import re
from pathlib import Path

import logits_cases
import logits_probe
import pytest
from logits_cases import CASES
from logits_pair import start, tokens_of
from worker_pair import connected, launched_pair

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(500)]
READY_SECONDS = 280.0
TOGETHER = 9  # fewer than a worker takes
FLAGS = (
    "--hook=contract_hook.ContractHook",
    *logits_probe.FLAGS,
    "--logits-timeout-ms=30000",  # what they compute is judged here, not how fast
    # The one form among the cases, a choice, is compiled without SGLang.
    '--engine-options=server_args={"log_level": "warning", "grammar_backend": "none"}',
)


@pytest.mark.promise("S3-097", "S1-052", "S5-299")
async def test_a_retracted_sequence_is_neither_repeated_nor_cut(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_TEST_RETRACT", "1")
    monkeypatch.setenv("SGLANG_TEST_RETRACT_INTERVAL", "3")
    with launched_pair(
        "sglang", model_path, tmp_path, ready_seconds=READY_SECONDS, flags=FLAGS
    ) as workers:
        async with connected(workers) as pair:
            free = await start(pair)
            await pair.finished(free)
            for cases in (CASES[:TOGETHER], CASES[TOGETHER:]):
                sequences = [await start(pair, *case.given) for case in cases]
                beside = await start(pair)
                for sequence in (*sequences, beside):
                    await pair.finished_well(sequence)
                for case, sequence in zip(cases, sequences, strict=True):
                    expected = logits_cases.expected(case, model_path)
                    assert tokens_of(sequence) == expected, case.name
                assert tokens_of(beside) == tokens_of(free)
            await pair.idle()
            retractions = workers[1].metric("tandem_engine_retractions_total")
            assert retractions
        assert re.search("#retracted_reqs: [1-9]", (tmp_path / "decode.log").read_text())
        assert [worker.end() for worker in workers] == [0, 0]
