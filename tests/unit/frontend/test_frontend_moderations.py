"""`/v1/moderations`: what clients are told of texts, and that nothing that keeps a classifier from
judging is ever taken for "not flagged".
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import PATIENCE, Harness, Start, error_of, request_bytes, say_hello, until

from tandem.errors import ConfigError, QueueFullError
from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.pool.turns import Turns
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.moderations import judge
from tandem_frontend.openai.moderations.categories import answer_of
from tandem_frontend.openai.moderations.wire import Judged, Unjudged
from tandem_frontend.openai.reading.bodies import SMALL_BYTES
from tandem_frontend.openai.reading.moderations import ModerationReader

PATH = "/v1/moderations"
BOTH = {"entries": ["text_judges:Toxicity", "text_judges:Openai"]}


async def judged(frontend: Harness, given: Any, **fields: Any) -> httpx.Response:
    return await frontend.http.post(PATH, json={"input": given, **fields})


def alone(diary: Path | str = "", **settings: Any) -> dict[str, Any]:
    return {
        "entries": [{"path": "text_judges:Toxicity", "config": {"diary": str(diary)}}],
        **settings,
    }


async def until_written(diary: Path, line: str) -> None:
    await until(lambda: diary.exists() and line in diary.read_text(encoding="utf-8").split("\n"))


# --- what is answered -----------------------------------------------------------------------------


@pytest.mark.promise("S5-635")
async def test_openais_client_reads_what_the_deployments_classifiers_say(start: Start) -> None:
    frontend = await start(say_hello, moderation_classifiers=BOTH, extra_fields=("my_policy",))
    answer = await frontend.openai.moderations.create(
        input=["fine", "toxic hate"], model="omni-moderation-latest"
    )
    assert answer.id.startswith("modr-")
    assert answer.model == "toxicity+openai"
    fine, bad = answer.results
    assert (fine.flagged, bad.flagged) == (False, True)
    assert bad.categories.hate_threatening is True  # by the client's own name of it
    assert bad.category_scores.hate_threatening == 0.75
    unjudged: Any = bad.categories.harassment
    assert unjudged is None
    assert bad.categories.to_dict() == {
        "toxicity": True,
        "openai": False,
        "hate/threatening": True,
        "moderated": True,
        "strict": False,
        "huge": False,
    }
    assert fine.category_scores.to_dict()["toxicity"] == 0.1
    types = bad.category_applied_input_types.to_dict()
    assert types == {name: ["text"] for name in bad.categories.to_dict()}

    one = await frontend.openai.moderations.create(input="toxic")
    assert [each.flagged for each in one.results] == [True]
    parts = [{"type": "text", "text": "fine"}, {"type": "text", "text": "toxic"}]
    joined = await frontend.openai.moderations.create(input=parts)  # type: ignore[arg-type]
    assert [each.flagged for each in joined.results] == [True]  # they are one input

    own = await judged(frontend, "fine", model="toxicity+openai", my_policy={"strict": True})
    assert own.status_code == 200
    assert own.json()["results"][0]["categories"]["strict"] is True  # it is given the field
    stranger = await judged(frontend, "fine", odd=1)
    assert stranger.headers["x-tandem-ignored-fields"] == "odd"
    done = await frontend.metric(
        "tandem_frontend_requests_total", endpoint="moderations", outcome="success"
    )
    assert done == 5


@pytest.mark.promise("S6-185")
async def test_a_large_body_is_read_in_another_process(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("a large body is read on the event loop")

    frontend = await start(say_hello, moderation_classifiers=BOTH)
    monkeypatch.setattr(ModerationReader, "read", broken)
    large = await judged(frontend, ["x" * SMALL_BYTES, "toxic"])
    assert [each["flagged"] for each in large.json()["results"]] == [False, True]


@pytest.mark.promise("S5-635")
async def test_what_cannot_be_judged_is_refused_by_name(start: Start) -> None:
    frontend = await start(
        say_hello, moderation_classifiers=BOTH, max_choices=3, max_moderation_bytes=2000
    )
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    text = {"type": "text", "text": "fine"}
    bad: list[tuple[Any, int, str, str | None]] = [
        ([text, image], 400, "unsupported_parameter", "input[1]"),
        ([{**text, "image_url": image["image_url"]}], 400, "unsupported_parameter", "input[0]"),
        ([{"type": "input_audio", "text": "a"}], 400, "unsupported_parameter", "input[0]"),
        ([text, {"type": "text"}], 400, "invalid_request", "input[1].text"),
        (["fine", text], 400, "invalid_request", "input"),
        ([], 400, "invalid_request", "input"),
        (["fine"] * 4, 400, "invalid_request", "input"),
        (7, 400, "invalid_request", "input"),
        ("x" * 2000, 413, "request_too_large", None),
    ]
    for given, status, code, param in bad:
        assert error_of(await judged(frontend, given)) == (status, code, param), given
    assert error_of(await frontend.http.post(PATH, json={})) == (400, "invalid_request", "input")
    unknown = await judged(frontend, "fine", model="gpt-4o")
    assert error_of(unknown) == (404, "model_not_found", "model")


@pytest.mark.promise("S5-635")
async def test_without_classifiers_it_says_which_setting_names_them(start: Start) -> None:
    frontend = await start(say_hello, api_keys=("a-key",))
    answer = await judged(frontend, "fine")
    assert error_of(answer) == (501, "not_configured", None)
    assert "moderation_classifiers" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    none = await frontend.http.post(PATH, json={}, headers={"authorization": "Bearer wrong"})
    assert error_of(none)[:2] == (401, "invalid_api_key")
    refused = await frontend.metric(
        "tandem_frontend_requests_total", outcome="not_configured", fault="client"
    )
    assert refused == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"entries": [{"path": "a:B", "blocks": True}]}, "moderation_classifiers: .*blocks"),
        ({"refusal": "No."}, "no entries and no plugins"),
    ],
)
def test_a_setting_that_can_never_judge_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        FrontendConfig(model_path="/model", moderation_classifiers=given)


# --- what fails -----------------------------------------------------------------------------------


async def recovered(frontend: Harness) -> bool:
    """What is said of a harmless text, once the process is there again."""
    answer = await until(lambda: judged(frontend, "fine"), lambda told: told.status_code != 500)
    flagged: bool = answer.json()["results"][0]["flagged"]
    return flagged


@pytest.mark.promise("S6-373")
async def test_a_judgement_that_fails_is_an_error_and_the_next_text_is_judged(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "LEAST_PAUSE_SECONDS", 0.01)
    frontend = await start(say_hello, moderation_classifiers=BOTH)
    for text, reason in [
        ("refuse", "unreachable"),
        ("raise my secret", "exception"),
        ("nonsense", "invalid_answer"),
        ("late", "too_late"),  # of one that only scores
        ("toxic, late", "too_late"),  # although another one blocks
        ("exit", "was lost"),
    ]:
        answer = await judged(frontend, ["fine", text])
        assert error_of(answer) == (500, "classifier_failed", None), text
        message = answer.json()["error"]["message"]
        assert reason in message
        assert "secret" not in message
        assert await recovered(frontend) is False
        assert (await judged(frontend, "toxic")).json()["results"][0]["flagged"] is True
    failed = await frontend.metric(
        "tandem_frontend_requests_total", outcome="classifier_failed", fault="server"
    )
    assert failed >= 6


@pytest.mark.promise("S6-373")
async def test_a_classifier_that_is_late_or_hangs_costs_nobody_else(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "MARGIN_SECONDS", 0.5)
    monkeypatch.setattr(judge, "LEAST_PAUSE_SECONDS", 0.01)
    entry = {"path": "text_judges:Toxicity", "timeout_ms": 300}
    frontend = await start(say_hello, moderation_classifiers={"entries": [entry]})
    assert await recovered(frontend) is False
    late = await judged(frontend, "wait")
    assert error_of(late) == (500, "classifier_failed", None)
    assert "timeout" in late.json()["error"]["message"]
    hung = asyncio.create_task(judged(frontend, "hang"))
    assert (await frontend.complete()).status_code == 200  # meanwhile
    assert error_of(await hung) == (500, "classifier_failed", None)
    assert await recovered(frontend) is False


@pytest.mark.promise("S6-373")
async def test_classifiers_that_cannot_be_loaded_leave_moderations_failing_and_the_rest_served(
    start: Start,
) -> None:
    frontend = await start(
        say_hello, moderation_classifiers={"entries": ["text_judges:Unloadable"]}
    )
    answer = await judged(frontend, "fine")
    assert error_of(answer) == (500, "classifier_failed", None)
    assert (await frontend.complete()).status_code == 200


def test_a_failed_classifier_leaves_no_judgement_whatever_the_others_say() -> None:
    told = {"toxicity": {"block": True}, "slow": {"error": "timeout"}}
    for decisions in (
        {"toxicity": "block", "slow": "timeout"},
        {"toxicity": "pass", "slow": "error"},
        {"toxicity": "annotate", "slow": "cancelled"},
    ):
        judgement = Judgement(blocked_by="toxicity", decisions=decisions, scores=told)  # type: ignore[arg-type]
        assert answer_of(judgement) == Unjudged("slow", "timeout")


def test_a_category_that_two_classifiers_name_holds_where_one_says_so() -> None:
    scores = {
        "one": {"categories": ["hate"], "category_scores": {"hate": 0.2, "huge": 10**400}},
        "two": {"block": True, "score": 3, "categories": {"hate": False, "odd": "yes"}},
        "three": {"categories": 7, "category_scores": ["hate"], "score": "high"},
    }
    found = answer_of(Judgement(decisions=dict.fromkeys(scores, "annotate"), scores=scores))
    assert isinstance(found, Judged)
    assert found.flagged is False  # none of them is blocking
    assert found.categories == {
        "one": False,
        "hate": True,
        "huge": False,
        "two": True,
        "odd": False,
        "three": False,
    }
    assert found.scores == {"one": 0, "hate": 0.2, "huge": 0, "two": 3, "odd": 0, "three": 0}


# --- who waits, and who goes ----------------------------------------------------------------------


@pytest.mark.promise("S5-636")
async def test_a_client_that_goes_away_ends_the_judgements_of_its_texts(
    start: Start, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    frontend = await start(say_hello, moderation_classifiers=alone(diary, max_concurrency=1))
    _, writer = await frontend.connect()
    writer.write(request_bytes(json.dumps({"input": ["wait", "wait"]}).encode(), path=PATH))
    await until_written(diary, "asked 0")
    waiting = asyncio.create_task(judged(frontend, "toxic"))
    writer.close()
    await until_written(diary, "cancelled")
    assert (await waiting).json()["results"][0]["flagged"] is True  # it has the turn now
    assert "asked 1" not in diary.read_text(encoding="utf-8")
    await frontend.until_metric(
        "tandem_frontend_requests_total", 1, endpoint="moderations", outcome="cancelled"
    )


@pytest.mark.promise("S5-636")
async def test_a_moderation_is_ended_by_the_time_that_a_request_has(
    start: Start, tmp_path: Path
) -> None:
    classifiers = alone(tmp_path / "diary")
    frontend = await start(
        say_hello, moderation_classifiers=classifiers, request_timeout_seconds=0.5
    )
    late = await judged(frontend, "wait")
    assert error_of(late) == (504, "deadline_exceeded", None)


@pytest.mark.promise("S5-636")
async def test_a_frontend_that_shuts_down_ends_moderations_and_shuts_classifiers_down(
    start: Start, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    frontend = await start(say_hello, moderation_classifiers=alone(diary))
    waiting = asyncio.create_task(judged(frontend, "wait"))
    await until_written(diary, "asked 0")
    frontend.stop.set()
    assert error_of(await waiting) == (503, "draining", None)
    await asyncio.wait_for(asyncio.shield(frontend.served), PATIENCE)
    await until_written(diary, "shut down")


@pytest.mark.promise("S5-636")
async def test_keys_take_turns_and_what_has_no_place_in_the_line_is_refused() -> None:
    turns = Turns(1, most_waiting=2, full="full")
    served: list[str] = []

    async def one(tenant: str) -> None:
        await turns.take(tenant)
        served.append(tenant)

    await turns.take("first")
    greedy = [asyncio.create_task(one("greedy")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await turns.take("greedy")
    modest = asyncio.create_task(one("modest"))
    with pytest.raises(QueueFullError):
        await greedy[1]  # it takes the place of this one
    for waiting in (greedy[0], modest):
        turns.give_back()
        await asyncio.wait_for(waiting, PATIENCE)
    assert served == ["greedy", "modest"]
