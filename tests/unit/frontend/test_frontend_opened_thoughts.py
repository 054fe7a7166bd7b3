"""What clients get of a model whose prompt ends within its thought, in all dialects."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
import pytest_asyncio
from fake_router import Reply
from harness import BOTH_WAYS, CHAT, MODEL, Harness, error_of, events, serving

from tandem.engine import model_files
from tandem.logits import Model, TokenHistory
from tandem.logits.registry import Registry
from tandem.logits.spec import SpecReader
from tandem.logits.state import RequestLogits
from tandem.text.stop_strings import Token
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2
from tandem.worker.intake import stop_strings

pytestmark = pytest.mark.asyncio(loop_scope="module")
ASSISTANT = "'<|im_start|>assistant\\n'"
OPENING = "'<|im_start|>assistant\\n<think>\\n'"
SWITCHED = (
    "'<|im_start|>assistant\\n'"
    " + ('<think>\\n\\n</think>\\n\\n' if enable_thinking is false else '<think>\\n')"
)
POSSIBLE = ASSISTANT + " + ('<think>\\n\\n</think>\\n\\n' if enable_thinking is false else '')"
QWEN35 = "{# <tool_call><function= #}"
THOUGHT, JSON = "Is it {1}?\n", '{"a": 1}'
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "response_format": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        JSON,
    ),
    "json_object": ({"response_format": {"type": "json_object"}}, JSON),
    "guided_json": ({"guided_json": SCHEMA}, JSON),
    "guided_choice": ({"guided_choice": ["yes", "no"]}, "no"),
    "guided_regex": ({"guided_regex": "[a-c]+/[0-9]"}, "cab/7"),
    "structured_outputs": ({"structured_outputs": {"choice": ["left", "right"]}}, "right"),
}
CALL = f'<tool_call>\n{{"name": "look", "arguments": {JSON}}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


class Obedient:
    """A model that thinks, where the logits processors of its task let it, or else ends its thought
    at once if they let it, and answers; its worker looks for stop strings.
    """

    def __init__(self, model_path: Path) -> None:
        self._tokenizer = Tokenizer.load(model_path)
        self._registry = Registry.builtin()
        self._model = Model(**model_files.processor_facts(model_path))
        self.answer = ""
        self.tasks: list[common_pb2.Task] = []

    async def __call__(self, reply: Reply) -> None:
        self.tasks.append(reply.task)
        behind = f"</think>{self.answer}"
        would = (THOUGHT + behind, behind)
        text = next((each for each in would if self._may(reply.task, each)), self.answer)
        text, met = _stopped(reply.task.sampling, text)
        for output in range(reply.submit.n):
            for character in text:
                reply.text(character, output=output)
            reply.finish(output=output, completion_tokens=len(text), stop_reason=met)
        await reply.flush()

    def _may(self, task: common_pb2.Task, text: str) -> bool:
        spec = SpecReader().read(task.logits)
        if spec is None:
            return True
        token_ids = self._tokenizer.encode(text, special_tokens=False)
        state = RequestLogits.create(self._registry, spec, self._model)
        for place, token in enumerate([*token_ids, self._model.eos_token_id]):
            row = numpy.zeros(self._model.vocabulary, dtype=numpy.float32)
            assert state.apply(TokenHistory([5], token_ids[:place]), row) is None
            if not numpy.isfinite(row[token]):
                return False
        return True


def _stopped(sampling: common_pb2.SamplingParams, text: str) -> tuple[str, str]:
    """As a worker cuts it, and at which stop string."""
    if not sampling.stop:
        return text, ""
    stops = stop_strings(sampling)
    shown = stops.push(Token(1, None, len(text)), text)
    if stops.matched is None:
        shown += stops.push(None, "")
    return shown + stops.flush(), stops.matched or ""


def templated(model_path: Path, folder: Path, generation_prompt: str, *, extra: str = "") -> Path:
    """The model with another end of its prompts. `extra`: what else its template has. The folder's
    name is the model's.
    """
    shutil.copytree(model_path, folder)
    path = folder / "tokenizer_config.json"
    texts = json.loads(path.read_text())
    template = texts["chat_template"]
    assert template.count(f"{{{{ {ASSISTANT} }}}}") == 1
    texts["chat_template"] = extra + template.replace(
        f"{{{{ {ASSISTANT} }}}}", f"{{{{ {generation_prompt} }}}}"
    )
    path.write_text(json.dumps(texts))
    return folder


class Thinker:
    """A served model that thinks."""

    def __init__(self, model: Obedient, frontend: Harness) -> None:
        self.model, self.frontend = model, frontend

    async def chat(self, answer: str, *, stream: bool, **fields: Any) -> list[dict[str, Any]]:
        """The choices' messages."""
        self.model.answer = answer
        response = await self.frontend.chat(stream=stream, **fields)
        assert response.status_code == 200, response.text
        if not stream:
            return [choice["message"] for choice in response.json()["choices"]]
        messages: dict[int, dict[str, Any]] = {}
        for choice in (each for chunk in events(response.text) for each in chunk["choices"]):
            message = messages.setdefault(choice["index"], {})
            for name in ("content", "reasoning_content"):
                if text := choice["delta"].get(name):
                    message[name] = message.get(name, "") + text
        return [messages[index] for index in sorted(messages)]


@asynccontextmanager
async def thinking(model_path: Path) -> AsyncIterator[Thinker]:
    model = Obedient(model_path)
    async with serving(model_path, model, {}) as frontend:
        await frontend.set_fleet(
            logits_processors=(
                "tagged",
                "json_schema",
                "choice",
                "regex",
                "ebnf",
                "thinking_budget",
            )
        )
        yield Thinker(model, frontend)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(
    model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Thinker]:
    folder = tmp_path_factory.mktemp("models") / MODEL
    async with thinking(templated(model_path, folder, SWITCHED)) as thinker:
        yield thinker


@pytest.mark.promise("S1-302")
@BOTH_WAYS
@pytest.mark.parametrize("field", FORMS)
async def test_a_chat_thinks_first_and_then_answers_in_its_form(
    opened: Thinker, field: str, stream: bool
) -> None:
    fields, answer = FORMS[field]
    messages = await opened.chat(answer, stream=stream, n=2, **fields)
    for message in messages:
        assert (message["reasoning_content"], message["content"]) == (THOUGHT, answer)
    assert len(messages) == 2


@BOTH_WAYS
async def test_where_the_request_closes_the_thought_the_form_is_the_whole_answer(
    opened: Thinker, stream: bool
) -> None:
    fields, answer = FORMS["response_format"]
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    (message,) = await opened.chat(answer, stream=stream, **fields, **off)
    assert (message.get("reasoning_content"), message["content"]) == (None, answer)


@pytest.mark.promise("S1-302")
@BOTH_WAYS
async def test_a_response_thinks_first_and_then_answers_in_its_form(
    opened: Thinker, stream: bool
) -> None:
    opened.model.answer = JSON
    text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    body = {"model": MODEL, "input": "Hello", "text": text, "stream": stream}
    response = await opened.frontend.http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    answer = response.json() if not stream else _data(response.text)[-1]["response"]
    shown = [(item["type"], item["content"][0]["text"]) for item in answer["output"]]
    assert shown == [("reasoning", THOUGHT), ("message", JSON)]


@pytest.mark.promise("S1-302")
@BOTH_WAYS
async def test_a_message_thinks_first_and_then_answers_in_its_form(
    opened: Thinker, stream: bool
) -> None:
    opened.model.answer = JSON
    body = {
        "model": MODEL,
        "max_tokens": 99,
        "messages": CHAT["messages"],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "stream": stream,
    }
    response = await opened.frontend.http.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text
    if not stream:
        blocks = response.json()["content"]
        shown = ["".join(each.get("thinking", "") for each in blocks), blocks[-1]["text"]]
    else:
        deltas = [each["delta"] for each in _data(response.text) if "delta" in each]
        kinds = ("thinking", "text")
        shown = ["".join(each.get(kind, "") for each in deltas) for kind in kinds]
    assert shown == [THOUGHT, JSON]


def _data(text: str) -> list[dict[str, Any]]:
    """Of a stream's events."""
    lines = [line for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("field", ["guided_grammar", "ebnf"])
async def test_a_grammar_behind_a_thought_is_refused_by_its_field(
    opened: Thinker, field: str
) -> None:
    refused = await opened.frontend.chat(**{field: 'root ::= "a"'})
    assert error_of(refused) == (400, "unsupported_parameter", field)


@pytest.mark.promise("S1-305")
@pytest.mark.parametrize("extra", ["", QWEN35], ids=["plain", "qwen3_coder"])
async def test_a_template_that_opens_a_thought_has_it_told_from_content(
    model_path: Path, tmp_path: Path, extra: str
) -> None:
    folder = templated(model_path, tmp_path / MODEL, OPENING, extra=extra)
    async with thinking(folder) as thinker:
        for stream in (False, True):
            (message,) = await thinker.chat("Well.", stream=stream)
            assert (message["reasoning_content"], message["content"]) == (THOUGHT, "Well.")


@pytest.mark.promise("S1-304")
@BOTH_WAYS
async def test_a_stop_string_in_a_thought_ends_nothing(opened: Thinker, stream: bool) -> None:
    fields = {"stop": ["{1}", "\n", "STOP"], "n": 2}
    for message in await opened.chat("\n\nWell STOP", stream=stream, **fields):
        assert (message["reasoning_content"], message["content"].lstrip()) == (THOUGHT, "Well ")


@BOTH_WAYS
async def test_a_stop_string_counts_where_the_thought_is_not_told_from_content(
    opened: Thinker, stream: bool
) -> None:
    fields = {"stop": "{1}", "separate_reasoning": False}
    (message,) = await opened.chat("Well", stream=stream, **fields)
    assert message["content"] == THOUGHT[: THOUGHT.index("{1}")]


async def test_a_stop_sequence_of_a_message_counts_in_its_text_alone(opened: Thinker) -> None:
    opened.model.answer = "Well STOP"
    body = {
        "model": MODEL,
        "max_tokens": 99,
        "messages": CHAT["messages"],
        "stop_sequences": ["Is it", "STOP"],
    }
    answer = (await opened.frontend.http.post("/v1/messages", json=body)).json()
    assert [each.get("text") for each in answer["content"]][-1] == "Well "
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "STOP")


async def test_a_completion_has_no_thought_in_which_stop_strings_do_not_count(
    opened: Thinker,
) -> None:
    await opened.frontend.complete(stop="x")
    assert not opened.model.tasks[-1].sampling.HasField("thought")


OFF = {"chat_template_kwargs": {"enable_thinking": False}}
ENDS = {"budget": 200, "end_text": "</think>"}
BEGINS = ENDS | {"begin_text": "<think>"}


@pytest.mark.promise("S1-303")
@pytest.mark.parametrize(
    ("generation_prompt", "fields", "budgets"),
    [
        (SWITCHED, {}, [ENDS]),
        (SWITCHED, OFF, []),
        (SWITCHED, {"reasoning_effort": "none"}, []),
        (POSSIBLE, {}, [BEGINS]),
        (POSSIBLE, OFF, []),
        (POSSIBLE, {"reasoning_effort": "none"}, []),
    ],
)
async def test_a_budget_is_asked_for_where_the_answer_may_think(
    model_path: Path,
    tmp_path: Path,
    generation_prompt: str,
    fields: dict[str, Any],
    budgets: list[dict[str, Any]],
) -> None:
    folder = templated(model_path, tmp_path / MODEL, generation_prompt)
    async with thinking(folder) as thinker:
        await thinker.chat("Well", stream=False, thinking_token_budget=200, **fields)
        spec = SpecReader().read(thinker.model.tasks[-1].logits)
    assert [each.args for each in (spec.named() if spec else ())] == budgets


@pytest.mark.promise("S1-303")
@pytest.mark.parametrize("field", [*FORMS, "tool_choice"])
@pytest.mark.parametrize("budget", [0, 200])
async def test_a_budget_beside_a_form_or_a_call_behind_the_thought_is_no_contradiction(
    opened: Thinker, field: str, budget: int
) -> None:
    called = {"tools": [TOOL], "tool_choice": "required"}
    fields, answer = FORMS.get(field, (called, CALL))
    (message,) = await opened.chat(answer, stream=False, thinking_token_budget=budget, **fields)
    assert ("reasoning_content" in message) == (budget > 0)
    if field == "tool_choice":
        assert [each["function"]["arguments"] for each in message["tool_calls"]] == [JSON]
    else:
        assert message["content"] == answer
