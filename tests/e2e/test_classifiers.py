"""Classifiers through the whole stack: what a client sees of an answer that they judge, in each
mode.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import switch_hook
from openai import OpenAI
from stacks import MODEL, SIM_READY_SECONDS, Served, options, until

from tandem.cli.stack import Stack

HERE = Path(__file__).parent
REFUSAL = "No."
START = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
PROMPT = "The for statement is used to"
BODY: dict[str, Any] = {
    "model": MODEL,
    "prompt": PROMPT,
    "max_tokens": 12,
    "temperature": 0,
    "ignore_eos": True,
}
SETTINGS = """
hook: switch_hook.SwitchHook
classifiers:
  hold_back: {hold_back}
  window_tokens: 4
  refusal: "{refusal}"
  regenerate: {regenerate}
  entries:
    - {{path: "switch_classifier:SwitchClassifier", config: {{name: first, blocking: true}}}}
    - {{path: "switch_classifier:SwitchClassifier", config: {{name: second, blocking: true}}}}
    - {{path: "switch_classifier:SwitchClassifier", config: {{name: note, blocking: false}}}}
"""


def new_trace() -> str:
    """Of which the switch hook makes nothing."""
    return f"{os.urandom(14).hex()}ffff"


def parent(trace_id: str) -> str:
    return f"00-{trace_id}-00f067aa0ba902b7-01"


class Classified:
    """A sim stack with three classifiers in decode."""

    def __init__(self, served: Served, log: Path) -> None:
        self.served, self._log = served, log

    def contexts(self, trace_id: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [
            line for line in lines if line.get("request_metadata", {}).get("trace_id") == trace_id
        ]

    def finals(self, answer: Answer) -> list[dict[str, Any]]:
        """What the first classifier was told, beside the text, of each whole output."""
        about = [
            context["request_metadata"]
            for context in self.contexts(answer.trace_id)
            if context["classifier"] == "first"
        ]
        return [each for each in about if each["is_final"]]

    def ask(self, do: dict[str, str], *, trace_id: str = "", **fields: Any) -> Answer:
        """`do`: what each classifier does. `trace_id`: what the switch hook does; else nothing."""
        trace_id = trace_id or new_trace()
        body = BODY | {"metadata": {f"do_{name}": what for name, what in do.items()}} | fields
        response = httpx.post(
            f"{self.served.url}/v1/completions",
            json=body,
            headers={"traceparent": parent(trace_id)},
            timeout=30,
        )
        return Answer(trace_id, response, bool(body.get("stream")))


class Answer:
    """What a client got, read the same way from a stream and from a body."""

    def __init__(self, trace_id: str, response: httpx.Response, stream: bool) -> None:
        self.trace_id, self.status = trace_id, response.status_code
        if stream:
            lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
            self.events = [json.loads(line) for line in lines if line != "[DONE]"]
        else:
            self.events = [response.json()]
        self.choices = [choice for event in self.events for choice in event.get("choices", ())]

    def text(self, index: int = 0) -> str:
        return "".join(choice["text"] for choice in self.choices if choice["index"] == index)

    def end(self, index: int = 0) -> dict[str, Any]:
        (end,) = [c for c in self.choices if c["index"] == index and c["finish_reason"]]
        found: dict[str, Any] = end
        return found


@pytest.fixture(scope="module")
def classifier_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    log = tmp_path_factory.mktemp("classifiers") / "contexts.jsonl"
    log.touch()
    os.environ["SWITCH_CLASSIFIER_LOG"] = str(log)
    yield log
    del os.environ["SWITCH_CLASSIFIER_LOG"]


def _stack(
    hold_back: str, model_path: Path, log: Path, hook_log: Path, tmp: Path
) -> Iterator[Classified]:
    settings = tmp / "decode.yaml"
    regenerate = "{times: 1, temperature: 1.9}" if hold_back == "all" else "null"
    settings.write_text(
        SETTINGS.format(hold_back=hold_back, refusal=REFUSAL, regenerate=regenerate)
    )
    flags = {
        "frontend": ("--allow-external-scores", "--withheld-finish-reason=content_filter"),
        "prefill_worker": ("--propagate-terminate",),
        "decode_worker": (f"--config={settings}",),
    }
    with Stack(options("sim", model_path, hook_decode="", flags=flags), run_dir=tmp) as stack:
        stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield Classified(Served("sim", stack, hook_log), log)


@pytest.fixture(scope="module", params=["none", "window", "all"])
def classified(
    request: pytest.FixtureRequest,
    model_path: Path,
    classifier_log: Path,
    hook_log: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Classified]:
    tmp = tmp_path_factory.mktemp(request.param)
    yield from _stack(request.param, model_path, classifier_log, hook_log, tmp)


@pytest.fixture
def hold_back(request: pytest.FixtureRequest) -> str:
    mode: str = request.node.callspec.params["classified"]
    return mode


@pytest.mark.promise("S4-098", "S4-113")
def test_a_classifier_is_told_all_there_is_to_know(classified: Classified) -> None:
    answer = classified.ask({"first": "pass"}, logprobs=0)
    context = classified.contexts(answer.trace_id)[-1]
    assert context["prompt"].endswith(PROMPT)
    assert context["generated_text"] == answer.text()
    assert context["finish_reason"] == "length"
    assert len(context["output_token_ids"]) == 12
    assert context["prompt_token_ids"]
    assert context["extra_fields"] == {}
    assert context["request_metadata"]["metadata"] == {"do_first": "pass"}
    assert int(context["request_id"]) > 0
    metadata = context["request_metadata"]
    assert (metadata["model"], metadata["output_index"]) == (MODEL, 0)


@pytest.mark.promise("S4-113")
def test_chat_is_covered_too(classified: Classified) -> None:
    client = OpenAI(base_url=f"{classified.served.url}/v1", api_key="none", max_retries=0)
    with client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=8,
            metadata={"do_first": "replace"},
        )
    assert answer.choices[0].message.content == "replaced by first"
    assert answer.choices[0].finish_reason == "content_filter"


@pytest.mark.promise("S4-106", "S4-107")
def test_scores_are_shown_only_where_they_are_asked_for(classified: Classified) -> None:
    for stream in (True, False):
        asked = classified.ask({}, stream=stream, tandem={"external_scores": True})
        assert set(asked.end()["external_scores"]) == {"first", "second", "note"}
        assert asked.end()["external_scores"]["note"]["score"] == 0.1
        assert "external_scores" not in classified.ask({}, stream=stream).end()


@pytest.mark.promise("S4-102", "S4-103", "S4-104", "S4-112")
@pytest.mark.parametrize(
    ("do", "shown"),
    [("block", REFUSAL), ("replace", "replaced by first"), ("fail", REFUSAL), ("hang", REFUSAL)],
)
def test_a_block_replaces_the_whole_of_an_answer_that_is_not_streamed(
    classified: Classified, do: str, shown: str
) -> None:
    answer = classified.ask({"first": do}, logprobs=1)
    assert answer.text() == shown
    assert answer.end()["logprobs"] is None
    assert (answer.end()["finish_reason"], answer.end()["stop_reason"]) == (
        "content_filter",
        "first",
    )
    withheld = classified.ask({"first": do}, detokenize=False)
    assert withheld.end()["token_ids"] == []


@pytest.mark.promise("S4-110", "S4-111", "S4-112")
def test_a_block_withholds_of_a_stream_what_its_mode_holds_back(
    classified: Classified, hold_back: str
) -> None:
    passed = classified.ask({}, stream=True, logprobs=1)
    blocked = classified.ask({"first": "block_at_end"}, stream=True, logprobs=1)
    assert blocked.text().endswith(REFUSAL)
    shown = blocked.text().removesuffix(REFUSAL)
    assert passed.text().startswith(shown)
    logprobs = [c["logprobs"] for c in blocked.choices if c["logprobs"]]
    tokens = "".join(token for entry in logprobs for token in entry["tokens"])
    assert tokens == shown
    if hold_back == "all":
        assert shown == ""
    else:
        assert 0 < len(shown) < len(passed.text())
    at_once = classified.ask({"first": "block"}, stream=True)
    assert hold_back == "none" or at_once.text() == REFUSAL
    assert blocked.end()["stop_reason"] == at_once.end()["stop_reason"] == "first"


@pytest.mark.promise("S4-105", "S4-101")
@pytest.mark.parametrize("do", ["block", "fail", "hang"])
def test_one_that_annotates_never_blocks(classified: Classified, do: str) -> None:
    plain = classified.ask({}, stream=True)
    answer = classified.ask({"note": do}, stream=True, tandem={"external_scores": True})
    assert answer.text() == plain.text()
    assert answer.end()["finish_reason"] == "length"
    scores = answer.end()["external_scores"]["note"]
    assert ("block" in scores) if do == "block" else ("error" in scores)


@pytest.mark.promise("S4-109", "S4-117")
def test_the_first_of_two_that_block_decides_and_none_sees_another_s_changes(
    classified: Classified,
) -> None:
    answer = classified.ask({"second": "replace", "first": "replace"})
    assert answer.text() == "replaced by first"
    mutated = classified.ask({"first": "mutate"})
    contexts = classified.contexts(mutated.trace_id)
    assert all(len(context["output_token_ids"]) == 12 for context in contexts)


@pytest.mark.parametrize("stream", [True, False])
def test_a_blocked_answer_is_made_once_more_where_the_deployment_says_so(
    classified: Classified, hold_back: str, stream: bool
) -> None:
    fields: dict[str, Any] = {"stream": stream}
    if stream:
        fields["stream_options"] = {"include_usage": True}
    answer = classified.ask({"first": "block_first_run"}, **fields)
    runs = [about["regeneration"] for about in classified.finals(answer)]
    usage = answer.events[-1]["usage"]
    if hold_back == "all":
        assert runs == [0, 1]
        assert answer.text() not in ("", REFUSAL)
        assert answer.end()["finish_reason"] == "length"
        assert usage["completion_tokens"] == 24
        assert classified.ask({"first": "block"}, **fields).text() == REFUSAL
    else:
        assert set(runs) <= {0}
        assert answer.text().endswith(REFUSAL)


@pytest.mark.promise("S4-114")
def test_each_of_n_outputs_is_judged_for_itself(classified: Classified) -> None:
    answer = classified.ask({"first": "block_second"}, n=2)
    assert answer.text(1) == REFUSAL
    assert answer.text(0) not in ("", REFUSAL)
    finals = classified.finals(answer)
    runs = {(about["output_index"], about["regeneration"]) for about in finals}
    assert len(runs) == len(finals)
    assert {(0, 0), (1, 0)} <= runs


@pytest.mark.promise("S4-118")
def test_classifiers_see_what_the_hooks_let_through(classified: Classified) -> None:
    answer = classified.ask({}, trace_id=switch_hook.trace(switch_hook.UPPER, "decode"))
    assert answer.text() == answer.text().upper()
    assert classified.contexts(answer.trace_id)[-1]["generated_text"] == answer.text()


@pytest.mark.promise("S4-119")
def test_what_a_hook_failed_or_prefill_terminated_is_not_judged(classified: Classified) -> None:
    failed = classified.ask({}, trace_id=switch_hook.trace(switch_hook.FAIL_FIRST, "decode"))
    assert failed.status == 500
    at_once = switch_hook.trace(switch_hook.TERMINATE_FIRST, "prefill")
    ended = classified.ask({}, trace_id=at_once)
    assert (ended.text(), ended.end()["finish_reason"]) == ("", "content_filter")
    for answer in (failed, ended):
        assert classified.contexts(answer.trace_id) == []


@pytest.mark.promise("S4-115", "S4-120")
def test_a_client_that_goes_away_cancels_the_classifiers_of_its_request(
    classified: Classified,
) -> None:
    served, name = classified.served, "tandem_classifier_verdicts_total"

    def cancelled() -> float:
        return served.metric("decode_worker-0", name, classifier="first", verdict="cancelled")

    before, asked, url = cancelled(), new_trace(), urlsplit(served.url)
    body = json.dumps(BODY | {"metadata": {"do_first": "hang"}}).encode()
    head = f"traceparent: {parent(asked)}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((url.hostname, url.port)) as client:
        client.sendall(START + head + body)
        until(lambda: classified.contexts(asked), "the classifier was not asked")
    until(lambda: cancelled() > before, "the classifier was not cancelled")
    assert served.metric("decode_worker-0", "tandem_worker_open_legs") == 0


@pytest.mark.promise("S4-120")
@pytest.mark.parametrize(
    ("do", "judged"),
    [
        ({"first": "pass"}, [("first", "pass"), ("second", "pass"), ("note", "annotate")]),
        ({"first": "block", "note": "fail"}, [("first", "block"), ("note", "error")]),
        ({"second": "fail", "note": "hang"}, [("second", "error"), ("note", "timeout")]),
    ],
    ids=["passed", "blocked", "failed"],
)
def test_calls_and_verdicts_are_exported(
    classified: Classified, do: dict[str, str], judged: list[tuple[str, str]]
) -> None:
    """What is cancelled is counted where a client goes away."""

    def counted(classifier: str, verdict: str) -> tuple[float, float]:
        metric = classified.served.metric
        worker, labels = "decode_worker-0", {"classifier": classifier}
        verdicts = metric(worker, "tandem_classifier_verdicts_total", verdict=verdict, **labels)
        return verdicts, metric(worker, "tandem_classifier_seconds_count", **labels)

    before = [counted(*each) for each in judged]
    classified.ask(do)
    for (verdicts, calls), each in zip(before, judged, strict=True):
        after = counted(*each)
        assert after[0] > verdicts, each
        assert after[1] > calls, each
