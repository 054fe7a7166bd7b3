"""A decode worker is killed while requests run there that are to be resumed: their clients' answers
are those of undisturbed ones, wherever in their output it happens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from resuming import (
    CASES,
    UNFORGIVING,
    Answer,
    answer,
    begun,
    kill,
    let_go,
    resumed,
    serving,
    whole,
)
from stacks import HERE

from tandem.cli.stack import Stack

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hooks": {"hooks": {"chain": ["chequered_hook.Chequered"]}},
    "pool": {"hooks": {"chain": ["chequered_hook.Chequered"], "workers": 1}},
    "classifiers": {
        "classifiers": {
            "hold_back": "window",
            "window_tokens": 4,
            "entries": [{"path": "lenient_classifier.Lenient"}],
        }
    },
}
LEAST = 6
OFTEN = ["e", "a", "t", "o"]


@pytest.fixture(params=SETTINGS)
def served(
    request: pytest.FixtureRequest,
    model_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stack]:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    # Slow enough for answers to run yet when a client that is short of CPU sees their first events.
    pace = ("step_ms=60",)
    settings = SETTINGS[request.param]
    yield from serving(model_path, tmp_path / "resuming", settings, engine_options=pace)


@pytest.mark.promise("S5-217")
async def test_answers_are_those_of_undisturbed_requests_whichever_token_the_worker_dies_at(
    served: Stack,
) -> None:
    await whole(served)
    greedy = await answer(served, {})
    half = len(greedy.texts[0]) // 2
    cases = CASES | {
        "stop string": {"stop": [greedy.texts[0][half : half + 5]]},
        "stop string and logprobs": {"stop": [greedy.texts[0][half : half + 5]], "logprobs": 2},
        "stop strings behind the least tokens": {"min_tokens": LEAST, "stop": OFTEN},
    }
    answers = await asyncio.gather(*(answer(served, fields) for fields in cases.values()))
    undisturbed = dict(zip(cases, answers, strict=True))
    assert undisturbed["stop strings behind the least tokens"].usage["completion_tokens"] > LEAST
    assert not {name: got.error for name, got in undisturbed.items() if got.error}
    last = undisturbed["greedy"].events
    places = [1, last // 2, last - 1]
    for place in places:
        victim = f"decode_worker-{place % 2}"
        killed = False

        def seen(events: int, place: int = place, victim: str = victim) -> None:
            nonlocal killed
            if events >= place and not killed:
                killed = True
                kill(served, victim)

        bystanders = [await begun(served) for _ in range(2)]
        # Each is sent twice: the router gives one to either worker.
        running = []
        for name, fields in sorted(cases.items(), key=lambda case: case[0] == "greedy"):
            watch = seen if name == "greedy" else lambda _: None
            running += [(name, asyncio.create_task(answer(served, fields, watch)))]
            running += [(name, asyncio.create_task(answer(served, fields)))]
        for name, task in running:
            assert (got := await task) == undisturbed[name], (place, name, got)
        assert killed
        await let_go(bystanders)
        served.components[victim].process.wait(10)
        served.restart(victim)
        await whole(served)
    assert await resumed(served, "finished") >= len(places)  # some end before the worker is killed
    assert await resumed(served, "failed") == await resumed(served, "refused") == 0


# --- what cannot be resumed ---------------------------------------------------------------------


SHOWN = 8
"""Events that have come before the worker is killed: a replay is compared with what they showed."""


async def lost(served: Stack, fields: dict[str, Any], *, company: bool = True) -> list[Answer]:
    """Two of the same request, one to either decode worker, of which one is killed."""
    await whole(served)
    bystanders = [await begun(served) for _ in range(2 * company)]
    running = {asyncio.Event(): 0, asyncio.Event(): 0}

    def seen(begins: asyncio.Event) -> Callable[[int], object]:
        return lambda events: begins.set() if events >= SHOWN else None

    tasks = [asyncio.create_task(answer(served, fields, seen(each))) for each in running]
    for each in running:
        await each.wait()
    kill(served, "decode_worker-0")
    answers = [await task for task in tasks]
    await let_go(bystanders)
    served.components["decode_worker-0"].process.wait(10)
    return answers


async def error_of_one(served: Stack, fields: dict[str, Any], **company: bool) -> str:
    """What the one ends with that was on the killed worker; the other is whole."""
    answers = await lost(served, {"max_tokens": 150} | fields, **company)
    errors = [each.error for each in answers if each.error is not None]
    assert [error["code"] for error in errors] == ["worker_lost"], answers
    assert sum(bool(each.ends) for each in answers) == 1
    return str(errors[0]["message"])


@pytest.fixture
def serve(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(HERE))

    def start(settings: dict[str, Any] | None = None, **changes: Any) -> Any:
        return contextmanager(serving)(model_path, tmp_path / "resuming", settings, **changes)

    return start


async def test_without_being_asked_for_nothing_is_resumed_and_nothing_said_of_it(
    serve: Any,
) -> None:
    with serve() as served:
        assert "resumed" not in await error_of_one(served, {"resume": False})


async def test_a_deployment_may_resume_what_does_not_ask_for_it(serve: Any) -> None:
    with serve(flags={"frontend": ("--resume",), "router": UNFORGIVING}) as served:
        fields = {"resume": None, "max_tokens": 150}
        undisturbed = await answer(served, fields)
        assert await lost(served, fields) == [undisturbed, undisturbed]
        assert await resumed(served, "finished") == 1


@pytest.mark.promise("S5-218")
async def test_a_request_that_was_alone_with_its_worker_is_not_resumed_and_says_so(
    serve: Any,
) -> None:
    with serve() as served:
        message = await error_of_one(served, {}, company=False)
        assert message.endswith("not resumed: the worker may have been lost by its fault")
        assert await resumed(served, "refused") == 1


@pytest.mark.promise("S5-218")
async def test_a_hook_that_does_not_declare_it_is_not_shown_an_output_again(serve: Any) -> None:
    """A process of its own says so for it."""
    hooks = {"chain": ["chequered_hook.Undeclared"], "workers": 1}
    with serve({"hooks": hooks}) as served:
        message = await error_of_one(served, {})
        expected = "not resumed: a hook or classifier does not declare that it is resumable"
        assert message.endswith(expected)


@pytest.mark.promise("S5-218")
async def test_a_replay_that_is_judged_otherwise_ends_the_request(serve: Any) -> None:
    with serve({"hooks": {"chain": ["chequered_hook.Forgetful"]}}) as served:
        message = await error_of_one(served, {})
        assert message.endswith("hooks or classifiers judged otherwise what was shown")


async def test_the_audit_log_marks_what_is_decided_again(serve: Any, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    settings = {
        "hooks": {"chain": ["chequered_hook.Chequered"]},
        "audit": {"path": str(log), "content": "full", "passes": True},
    }
    with serve(settings) as served:
        answers = await lost(served, {"max_tokens": 150})
        assert [each.error for each in answers] == [None, None]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    replays = [line for line in lines if line.get("replay")]
    assert replays
    assert len({line["trace_id"] for line in replays}) == 1
    mine = [line for line in lines if line["trace_id"] == replays[0]["trace_id"]]
    again = {(line["tokens"], line["before"]["text"]) for line in replays}
    first = [line for line in mine if line["worker"] != replays[0]["worker"]]
    assert again >= {(line["tokens"], line["before"]["text"]) for line in first}
    assert any(not line.get("replay") for line in mine if line["worker"] == replays[0]["worker"])
