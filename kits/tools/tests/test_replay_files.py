"""What `tandem replay` reads: fleets, tables of times, traces; and the traces that it makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import ConfigError
from tandem_tools import trace as traces
from tandem_tools.trace import BLOCK_TOKENS, TracedRequest
from tandem_tools.trace_replay import fleet, generator, times
from tandem_tools.trace_replay.times import Curve

TABLE = "prefill_ms: [[0, 1], [1000, 51]]\nstep_ms: [[1, 10], [4, 16]]\n"


def written(folder: Path, text: str, name: str = "fleet.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_fleet_has_its_table_in_it_or_in_a_file_beside_it(tmp_path: Path) -> None:
    written(tmp_path, TABLE, "times.yaml")
    pools = "prefill: {workers: 2}\ndecode: {workers: 1, slots: 8}\n"
    beside = fleet.read(written(tmp_path, f"{pools}times: times.yaml\n"))
    inside = fleet.read(written(tmp_path, f"{pools}times:\n  " + TABLE.replace("\n", "\n  ")))
    assert beside == inside
    assert (beside.name, beside.workers, beside.decode.slots) == ("2:1", 3, 8)
    assert beside.table.step_ms == ((1, 10), (4, 16))


@pytest.mark.promise("S5-362")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("times: {step_ms: [[1, 1]]}", "missing required field `prefill_ms` - at `$.times`"),
        ("times: gone.yaml\nprefill: {workers: 1}\ndecode: {workers: 1}", "gone.yaml"),
        ("prefill: {worker: 1}", "unknown field `worker` - at `$.prefill`"),
        ("prefill: {workers: 100000}", "`int` <= 10000"),
        ("prefill: {workers: 1}\ntimes: t", "workers of both, or of none"),
        ("times: t", "a fleet needs workers"),
        ("prefill: {", "line 1"),
        ("[" * 30_000 + "]" * 30_000, "recursion"),
        ("\x80\x81", "fleet.yaml"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_by_its_field(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        fleet.read(written(tmp_path, text))
    assert said in str(refused.value)


@pytest.mark.promise("S5-362")
@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("prefill_ms: [[5, 1], [5, 2]]\nstep_ms: [[1, 1]]", "prefill_ms: the sizes do not grow"),
        ("prefill_ms: [[5, 1]]\nstep_ms: [[1, 0]]", "a step takes longer than nothing"),
        ("prefill_ms: [[5, -1]]\nstep_ms: [[1, 1]]", "`float` >= 0.0"),
        ("prefill_ms: []\nstep_ms: [[1, 1]]", "length >= 1"),
    ],
)
def test_a_table_that_cannot_be_is_refused(tmp_path: Path, table: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        times.read(written(tmp_path, table))
    assert said in str(refused.value)


def test_a_huge_file_is_refused_and_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has more than"):
        times.read(written(tmp_path, " " * (times.MAX_FILE_BYTES + 1)))


def test_times_lie_on_straight_lines_between_points_and_go_on_beyond_the_last() -> None:
    curve = Curve([(10, 100.0), (20, 200.0), (40, 300.0)])
    assert [curve(size) for size in (0, 10, 15, 30, 60)] == pytest.approx(
        [0.1, 0.1, 0.15, 0.25, 0.4]
    )
    assert Curve([(10, 100.0), (20, 90.0)])(1000) == pytest.approx(0.09), "time does not run out"
    assert Curve([(10, 100.0)])(1000) == pytest.approx(0.1)


def test_other_numbers_of_workers_are_checked_like_the_files(tmp_path: Path) -> None:
    text = "prefill: {workers: 2}\ndecode: {workers: 1}\ntimes:\n  " + TABLE.replace("\n", "\n  ")
    found = fleet.read(written(tmp_path, text))
    assert found.with_workers(1, 3).name == "1:3"
    assert found.with_workers(0, 0, 3).name == "3 aggregated"
    assert found.with_workers(2, 1, 1).name == "2:1 + 1 aggregated"
    with pytest.raises(ConfigError, match=r"2:0:0: .*workers of both, or of none"):
        found.with_workers(2, 0)


# --- traces ------------------------------------------------------------------------------------


@pytest.mark.promise("S5-362", "S6-362")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 2: "),
        (b'{"timestamp": -1, "input_length": 1, "output_length": 1}', "at least 0"),
        (b'{"timestamp": 1, "input_length": 0, "output_length": 1}', "line 2: timestamps must be"),
        (b'{"timestamp": "1", "input_length": 1, "output_length": 1}', "line 2: Expected `float`"),
        (b'{"timestamp": 1, "input_length": 1}', "line 2: Object missing"),
        (b'{"hash_ids": [' + b"1," * 600_000 + b"1]}", "line 2: a line of more than 1,048,576"),
        (b"\x00" * 10, "line 2: "),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"timestamp": 0, "input_length": 1, "output_length": 1}\n' + line + b"\n")
    with pytest.raises(ConfigError) as refused:
        traces.read(path)
    assert said in str(refused.value)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="has no requests"):
        traces.read(path)


def test_more_requests_than_memory_is_for_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_REQUESTS", 3)
    path = tmp_path / "trace.jsonl"
    traces.write(path, [TracedRequest(each, 1, 1) for each in range(4)])
    with pytest.raises(ConfigError, match="line 4: more than 3 requests"):
        traces.read(path)


@pytest.mark.parametrize("kind", sorted(generator.KINDS))
def test_made_traces_are_the_same_by_the_same_seed_and_have_the_form_of_a_file(
    kind: str, tmp_path: Path
) -> None:
    made = generator.generate(kind, requests=2000, rate=10.0, seed=7)
    assert made == generator.generate(kind, requests=2000, rate=10.0, seed=7)
    assert made != generator.generate(kind, requests=2000, rate=10.0, seed=8)
    traces.write(tmp_path / "made", made)
    assert traces.read(tmp_path / "made") == made
    for each in made:
        assert len(each.hash_ids) == -(-each.input_length // BLOCK_TOKENS)


def test_the_rate_of_a_made_trace_is_what_was_asked_for() -> None:
    for kind in ("shared", "mixed"):
        made = generator.generate(kind, requests=4000, rate=10.0, seed=1)
        assert made[-1].timestamp / 1000 == pytest.approx(400, rel=0.05)
    chat = generator.generate("chat", requests=20_000, rate=20.0, seed=1)
    later = [each.timestamp for each in chat[5000:]]  # once the first conversations are older
    assert 15_000 / ((later[-1] - later[0]) / 1000) == pytest.approx(20, rel=0.05)


def reused(made: tuple[TracedRequest, ...]) -> float:
    """The share of blocks that an earlier prompt had too, at the same beginning."""
    seen: set[int] = set()
    again = total = 0
    for each in made:
        again += sum(block in seen for block in each.hash_ids)
        total += len(each.hash_ids)
        seen.update(each.hash_ids)
    return again / total


def test_conversations_grow_prompts_are_shared_and_mixed_ones_have_nothing_in_common() -> None:
    kinds = {
        kind: generator.generate(kind, requests=4000, rate=10.0, seed=1) for kind in generator.KINDS
    }
    assert reused(kinds["mixed"]) == 0
    assert reused(kinds["shared"]) > 0.8
    assert 0.4 < reused(kinds["chat"]) < 0.9
    long = sum(each.input_length > 4000 for each in kinds["mixed"])
    assert 0.05 < long / 4000 < 0.15
