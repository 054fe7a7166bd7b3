"""An installed release serves: as its own test says, as the openai client sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from cluster_values import PHRASE
from openai import OpenAI
from release import MODEL, Release


@pytest.fixture
def address(release: Release) -> Iterator[str]:
    with release.forwarded() as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def forced(address: str, text: str) -> dict[str, Any]:
    body = {"prompt": text, "add_special_tokens": False}
    tokens = httpx.post(f"http://{address}/tokenize", json=body).json()["tokens"]
    processor = {"name": "forced_sequence", "args": {"token_ids": tokens, "eos_token_id": 0}}
    return {"logits_processors": [processor]}


def test_what_helm_prints_leads_to_an_answer(installed: tuple[Release, str]) -> None:
    printed = installed[1]
    assert "STATUS: deployed" in printed
    assert "kubectl" in printed
    assert "curl" in printed


@pytest.mark.promise("S5-126")
def test_helm_test_passes_and_proves_that_kv_bytes_moved(release: Release) -> None:
    before = release.metric("decode", "tandem_kv_transfer_bytes_total")
    printed = release.namespace.helm("test", release.name, "--timeout", "3m")
    assert "Succeeded" in printed
    assert release.metric("decode", "tandem_kv_transfer_bytes_total") > before


def test_the_openai_client_streams_through_the_service(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Tell me about the assert statement."}]
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    texts = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 32
    assert len(texts) > 2


def test_a_forced_sequence_is_exact_from_its_first_token(address: str, client: OpenAI) -> None:
    text = "Prefill made the first token, decode the rest."
    answer = client.completions.create(
        model=MODEL, prompt="Anything", max_tokens=64, extra_body=forced(address, text)
    )
    assert answer.choices[0].text == text


def test_the_hook_of_the_values_stops_an_answer(address: str, client: OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL,
        prompt="Anything",
        max_tokens=64,
        stream=True,
        extra_body=forced(address, f"Before it. {PHRASE} and after it"),
    )
    chunks = [json.loads(chunk.model_dump_json()) for chunk in stream]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    last = [choice for chunk in chunks for choice in chunk["choices"]][-1]
    assert "Before it." in text
    assert PHRASE not in text
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "cluster_guard")


def test_both_phases_ran_every_answer(release: Release, client: OpenAI) -> None:
    def legs() -> list[float]:
        return [
            release.metric(phase, "tandem_worker_legs_total", outcome="finished")
            for phase in ("prefill", "decode")
        ]

    before = legs()
    client.completions.create(model=MODEL, prompt="Anything", max_tokens=4)
    assert [after - earlier for after, earlier in zip(legs(), before, strict=True)] == [1, 1]
