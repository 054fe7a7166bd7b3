"""What Tandem does inside SGLang's scheduler: logits processors, seeds, and the check for CPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sglang_sides

from tandem_sglang import libfabric

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """The answers of sglang_scheduler_side.py."""
    return sglang_sides.answers(sglang_sides.HERE / "sglang_scheduler_side.py")


@pytest.mark.promise("S5-420", "S5-421", "S5-422", "S5-667")
def test_hand_overs_are_measured_in_both_phases(seen: dict[str, Any]) -> None:
    first, nobody, failed, moved = seen["hand_overs_have_less_time_once_kv_has_moved"]
    assert first == 300
    assert nobody == failed == [300, []]
    assert moved == [60, [[20, 0.5, "nixl/ucx/unknown"]]]
    # A share of 2 ranks is 2 of 4 heads; beyond 4 ranks, several hold the same head.
    assert seen["shares_are_counted_as_often_as_ranks_write_them"] == {
        "1-1": [1, 1],
        "2-2": [2, 2],
        "8-8": [8, 8],
        "1-2": [1, 1],
        "2-1": [2, 1],
        "8-4": [8, 4],
        "4-8": [8, 4],
        "2-8": [4, 2],
        "1-8": [2, 1],
    }
    assert seen["cached_tokens_stay_those_of_prefill"] == [[5], 0]
    pages, measured = seen["pages_that_decode_asks_for_are_counted"]
    assert pages == [2, 3, 4]
    assert measured == [[3 * 100 * 2, 1.0, "nixl/ucx/unknown"]]
    sent, received = seen["hand_overs_by_mooncake_are_measured"]
    assert sent == [[10, 0.5, "mooncake/rdma/tcp"]]
    assert received == "mooncake/rdma/unknown"
    by_libfabric = ["nixl/libfabric/rdma", "nixl/libfabric/unknown"]
    assert seen["hand_overs_by_libfabric_name_their_wire"] == by_libfabric


@pytest.mark.promise("S5-667")
@pytest.mark.parametrize(
    ("providers", "wire"),
    [
        *(("efa", "rdma"), ("EFA", "rdma"), ("verbs;ofi_rxm", "rdma"), ("efa, verbs", "rdma")),
        *(("tcp", "tcp"), ("tcp;ofi_rxm", "tcp"), ("sockets,tcp", "tcp"), ("shm", "shm")),
        *(("", "unknown"), ("efa,tcp", "unknown"), ("^tcp", "unknown"), ("new", "unknown")),
    ],
)
def test_a_wire_is_named_where_the_provider_leaves_no_choice(providers: str, wire: str) -> None:
    assert libfabric.wire(providers) == wire


@pytest.mark.promise("S5-450")
def test_requests_come_from_each_process_and_answers_go_to_whom_they_name(
    seen: dict[str, Any],
) -> None:
    answers, outputs, opened = seen["outputs_go_past_the_detokenizer"]
    assert (answers, outputs) == ("worker", "worker")
    assert "detokenizer" not in opened
    came, second, first = seen["a_further_process_has_sockets_of_its_own"]
    assert came == ["from the first", "from the second"]
    assert second == ["tandem-02-000001-00000000000000000007"]
    assert first == ["tandem-01-000000-00000000000000000008", ""]


@pytest.mark.promise("S3-087", "S1-052", "S3-093", "S3-097")
def test_each_row_is_edited_by_its_own_request_at_its_own_position(seen: dict[str, Any]) -> None:
    assert seen["rows_are_edited_by_their_own_request"] == [5, 6]
    row = [-1e9, 0.5, 0.5, 0.5, 0.5, 0.5, 1.5, 0.5]
    assert seen["a_bias_is_added_after_the_processors"] == [row, row]
    position, has_tokens, calls, last = seen["position_under_overlap"]
    assert (position, has_tokens, last) == (2, 0, -1), "tokens that come late are not shown"
    assert calls == 3, "a processor that counts was called for the positions before"
    position, has_tokens, _, last = seen["position_with_exact_history"]
    assert (position, has_tokens, last) == (2, 1, 5)
    assert seen["middle_chunks"] == [[0.5] * 8, [0.5] * 8], "of a prefill and of its repetition"
    assert seen["state_is_kept_on_the_request"] == [1, 2, 3, 3, 1, True]
    assert seen["late_sampling"] == [False, False, True, False, False], "where tokens are read"


@pytest.mark.promise("S5-392")
def test_a_row_that_fails_ends_its_own_request_where_the_tokens_of_its_step_are_taken_in(
    seen: dict[str, Any],
) -> None:
    failed = seen["failing_row"]
    built, row, neighbour = seen["failing_when_built"]
    for reason, why in ((failed["reason"], "KeyError"), (built, "RuntimeError")):
        assert reason["err_type"] == "TandemProcessorError"
        assert why in reason["message"]
        assert "secret" not in reason["message"]
    assert failed["row"] == row == [0.0] * 8
    assert (failed["neighbour"], failed["neighbour_ends"], neighbour) == (5, False, 5)
    assert failed["again"] is True, "it is ending, and is not touched again"
    before, after = [False, False], [True, False]
    overlapping = [before, before, before, "copied", after]
    read = seen["failing_rows_are_read_with_their_results"]
    assert read["one step"] == [*overlapping, before, before, after]
    first, second = [[False, True], [False, False]], [[False, True], [True, False]]
    assert read["two steps"] == [[first, second]] * 2, "each row ends by its own step's result"
    assert seen["failures_of_sampling_that_waited_are_kept"] == [False, False, True]


@pytest.mark.promise("S5-391")
def test_the_first_rank_says_the_tokens_of_steps_with_processors(seen: dict[str, Any]) -> None:
    ways = seen["tokens_of_steps_with_processors_are_the_first_ranks"]
    assert ways == [[[7], "group", 0], "SGLang's"]


@pytest.mark.promise("S3-090")
def test_state_dies_with_its_request_without_the_garbage_collector(seen: dict[str, Any]) -> None:
    highest, left = seen["state_dies_with_its_request"]
    assert highest == left + 1


@pytest.mark.promise("S3-094")
def test_the_processor_class_travels_by_reference_and_never_as_code(seen: dict[str, Any]) -> None:
    pickled = bytes.fromhex(json.loads(seen["to_str"])["callable"])
    assert b"tandem_sglang.processor" in pickled
    assert len(pickled) < 100


def test_seeds_are_hashed_as_sglangs_gpu_kernel_does_and_draw_by_the_probabilities(
    seen: dict[str, Any],
) -> None:
    assert seen["hashes"] is True
    assert seen["shares"] == pytest.approx([0.2, 0.3, 0.5], abs=0.02)


def test_a_grammar_that_takes_too_long_raises_or_allows_nothing_is_marked(
    seen: dict[str, Any],
) -> None:
    good, nothing, slow, raising, slow_to_accept, refusing, accepted = seen["watched_grammars"]
    assert good == [[0, 5], ""]
    # A row of nothing would end the scheduler: it is sampled freely, and its request ends.
    assert nothing == [[0, -1], "the answer's form allows no further token"]
    too_slow = "the answer's form takes more than 100 ms of CPU time for a token"
    assert slow == [[0, 5], too_slow]
    assert raising == [[0, -1], "the answer's form cannot go on (RuntimeError)"]
    assert slow_to_accept == too_slow
    assert refusing == "the answer's form cannot go on (ValueError)"
    assert accepted == [[1, 2], []], "one that is late goes on until its request has ended"


@pytest.mark.promise("S5-444")
def test_requests_of_grammars_that_failed_end_where_their_tokens_are_taken_in(
    seen: dict[str, Any],
) -> None:
    one_rank, _, ranks, unshown, without, asked = seen["ends_of_grammars"]
    assert one_rank == [None, "too slow", None, None, None, None]
    elsewhere = "the answer's form failed on another rank of its engine, whose log says how"
    at_odds = "the ranks of an engine are at odds about where the answer's form ends"
    assert ranks == [None, "too slow", elsewhere, at_odds, None, None]
    assert unshown == [None, None]
    assert without == [], "no rank waits for others in a batch without grammars"
    assert asked == 1, "another rank may have failed"


@pytest.mark.promise("S5-460")
def test_all_stages_of_a_pipeline_end_what_the_last_one_says_of_each_step(
    seen: dict[str, Any],
) -> None:
    elsewhere = "the answer's form failed on another rank of its engine, whose log says how"
    first, last, unsent = seen["ends_in_a_pipeline"]
    assert first == [[None], [None, elsewhere, None], [None, None]]
    assert last == [[None], [None, "too slow", None], [None, None]]
    assert unsent == [None], "a step whose outputs are not sent leaves nothing for the next"


@pytest.mark.promise("S5-299", "S5-444")
def test_what_one_rank_could_not_compile_ends_on_all_and_none_keeps_it(
    seen: dict[str, Any],
) -> None:
    ends, kept, counted = seen["compiled_grammars"]
    assert counted == [1, 2, 3, 4, 0], "who waits is counted by load snapshots"
    failed = "the answer's form, which passed its check, could not be compiled"
    assert ends == [None, f"{failed} on another rank of its engine", failed, "cancelled"]
    assert kept == {"a": "made a"}


@pytest.mark.promise("S5-470")
def test_a_form_bounds_each_draft_and_one_that_fails_ends_its_request_alone(
    seen: dict[str, Any],
) -> None:
    next_, end, one_rank, well, ranks = seen["forms_where_drafts_are_verified"]
    free = ["free"] * 5
    followed = [next_, end, "free", "free", "free"]  # after the end, and after what does not fit
    why = "the answer's form cannot go on (AttributeError)"
    elsewhere = "the answer's form failed on another rank of its engine, whose log says how"
    assert one_rank == well == [[followed, free, free], [None, why, None], True]
    assert ranks == [[free, free, free], [elsewhere, why, None], True], "all accept the same drafts"
    assert seen["ways_to_draft_that_apply_no_grammars"] == [], "but those that are refused"


def test_grammars_have_the_limits_and_the_json_of_sim_and_what_is_kept_is_bounded(
    seen: dict[str, Any],
) -> None:
    json_arguments, limits, kinds = seen["bounded_guidance"]
    assert json_arguments["overrides"]["item_separator"] == ", "
    assert limits == [10_000, 20_000]
    assert kinds == ["WatchedGuidance"] * 2
    assert seen["grammar_caches"] == [["a", "c"], 1_000, 1_000]


@pytest.mark.promise("S6-332")
def test_a_prompt_is_scored_in_parts_whose_memory_is_small(seen: dict[str, Any]) -> None:
    assert seen["scored_at_once"] == 256


@pytest.mark.promise("S5-301")
def test_however_many_prefill_engines_keep_silent_the_loop_waits_for_none(
    seen: dict[str, Any],
) -> None:
    found = seen["prefill_engines_are_asked_beside_the_loop"]
    assert found["asked in the loop"] == []
    assert found["at once"] == 128
    assert found["ready"] == ["well"], "its requests do not wait a second for their next turn"
    assert found["wrong"] == 2, "it costs its own requests, which ask again"
    assert found["at last"], "the others' turn has come too"
    assert found["remembered"] == [], "of those that nobody waits for"


@pytest.mark.promise("S5-301")
def test_a_prefill_engine_that_falls_silent_after_its_layout_is_awaited_beside_the_loop(
    seen: dict[str, Any],
) -> None:
    found = seen["ranks_of_prefill_are_known_before_they_are_needed"]
    assert found["asked in the loop"] == []
    assert found["after its layout"] == [], "what is known by half is not known"
    assert found["after its ranks"] == ["half"]
    assert found["of room 3"] == [[1, 1], [1, 0]], "those of its data-parallel rank"
    assert found["moved"] == [[101, 1], [101, 0]], "when a hand-over has failed"
    assert found["of no rank"] == "failed"


@pytest.mark.promise("S5-461")
def test_a_peer_that_does_not_fit_costs_its_own_hand_overs_alone(seen: dict[str, Any]) -> None:
    found = seen["messages_of_decode_engines"]
    assert found["rooms"] == {"1": "Failed", "2": "WaitingForInput", "3": "WaitingForInput"}
    assert found["told"] == [[1, "10.0.0.9", 77]], "decode waits for nothing"
    assert found["registered"] == ["wide", "shy"], "one whom NIXL failed once is tried again"
    assert found["said"] == [
        "no decode engine begins a message so",
        "it cannot be read (IndexError)",
        "it cannot be read (ValueError)",
        "ValueError: NIXL PD transfer: decode registered fewer KV regions (4) than prefill (6); "
        "unexpected geometry",
        "RuntimeError: NIXL is busy",
    ], "each once"
    assert found["ended by"] == ["Closed"], "the thread has gone on to the end of its socket"
    assert seen["messages_of_decode_engines_by_mooncake"] == {
        "rooms": {"1": "Failed", "2": "WaitingForInput"},
        "told": [[1, "10.0.0.9", 77]],
        "registered": ["fits:1"],
        "written to": {"2": ["fits:1"]},
        "ended by": ["Closed"],
    }
    failed = {"room": "Failed", "ended by": ["Closed"]}
    assert seen["messages_of_prefill_engines"] == {"nixl": failed, "mooncake": failed}


@pytest.mark.promise("S5-443")
def test_a_hand_over_has_come_when_all_ranks_have_written_all(seen: dict[str, Any]) -> None:
    """A slot that one of them still writes into would be given to another sequence."""
    assert seen["hand_overs_by_what_has_come"] == {
        "one rank": 2,
        "two ranks": 4,
        "the second writes its metadata first": 4,
        "in two chunks": 6,
        "the second had all cached": 3,
    }


def test_a_missing_cpu_plugin_is_reported_with_its_mend(seen: dict[str, Any]) -> None:
    assert "pip install ./kits/sglang-cpu" in seen["missing_plugin"]


@pytest.mark.promise("S5-681")
def test_a_controller_serves_until_the_schedulers_that_the_worker_started_are_gone(
    seen: dict[str, Any],
) -> None:
    assert seen["schedulers_that_the_worker_started_are_seen_to_end"] == [True, False]
