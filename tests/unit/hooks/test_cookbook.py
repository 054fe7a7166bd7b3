"""The examples do what their first lines say, and keep to the contract."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from examples.ask_a_service import AskService
from examples.classify_tone import Tone
from examples.hooks import CountingHook, PhraseGuard, UpperCase
from examples.limit_sentences import LimitSentences
from examples.redact_pii import RedactPii
from examples.stop_repetition import StopRepetition
from examples.veto_first_token import VetoFirstToken
from tandem.cli import main
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.testing import SimStack, run_hook, run_outputs, sim_stack


@pytest.mark.parametrize(
    "arguments",
    [
        ["examples.hooks:UpperCase"],
        ["examples.hooks:CountingHook"],
        ["examples.hooks:PhraseGuard"],
        ["examples.hooks:PhraseGuard", "--config={phrase: aab, reason: other}", "--text=x aaab"],
        ["examples.redact_pii:RedactPii"],
        ["examples.redact_pii:RedactPii", "--config={flush: size, max_tokens: 4}"],
        ["examples.limit_sentences:LimitSentences", "--config={sentences: 2}"],
        ["examples.stop_repetition:StopRepetition", "--text=" + "again\n" * 9],
        ["examples.veto_first_token:VetoFirstToken", "--config={token_ids: [1]}"],
    ],
)
def test_an_example_keeps_to_the_contract_without_a_warning(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-hook", *arguments]) == 0
    out = capsys.readouterr().out
    warned = [line for line in out.splitlines() if line.startswith("??")]
    assert [line for line in warned if "time a call" not in line] == [], out  # a busy machine's


def test_upper_case_rewrites() -> None:
    assert run_hook(UpperCase(), ["ab", "c ☃"]).text == "ABC ☃"


def test_the_counting_hook_counts() -> None:
    hook = CountingHook()
    assert run_hook(hook, ["ab", "c"]).text == "abc"
    run_hook(hook, ["d"], ending="abort")
    assert (hook.chunks, hook.characters, hook.finished, hook.aborted) == (4, 4, 1, 1)


@pytest.mark.promise("S0-017")
def test_the_phrase_guard_shows_nothing_of_a_phrase_that_spans_chunks() -> None:
    run = run_hook(PhraseGuard(), ["Well,", " For", "bidden", " phr", "ase", " more"])
    assert (run.text, run.stop_reason) == ("Well, ", "phrase_guard")
    assert run.token_ids == (1,)


def test_the_phrase_guard_loses_nothing_of_other_text() -> None:
    run = run_hook(PhraseGuard(), ["for", "forbidden", " phra", "X for"])
    assert (run.text, run.token_ids) == ("forforbidden phraX for", (1, 2, 3, 4))
    assert run_hook(PhraseGuard(), ["forbidden", " phra"]).text == "forbidden phra"


def test_the_phrase_guard_keeps_outputs_apart_and_forgets_them() -> None:
    guard = PhraseGuard()
    first, second = run_outputs(guard, ["forbidden", " rain"], [" phrase", " two"])
    assert (first.text, second.text) == ("forbidden rain", " phrase two")
    run_hook(guard, ["forbidden"], ending="abort")
    assert guard._held == {}


def test_pii_is_redacted_over_chunk_borders_with_its_token_ids() -> None:
    chunks = ["Write to ann", ".lee@exam", "ple.com", " or +1 415", " 555 0132, not ", "12", "34."]
    run = run_hook(RedactPii(), chunks)
    assert run.text == "Write to [email] or [phone], not 1234."
    assert not {1, 2, 3} & set(run.token_ids)


def test_an_answer_ends_with_its_last_sentence() -> None:
    run = run_hook(LimitSentences(sentences=2), ["One. Two", "!", " Three. Four."])
    assert (run.text, run.stop_reason) == ("One. Two!", "sentence_limit")
    assert run_hook(LimitSentences(), ["Pi is 3.14. No more."]).stop_reason is None


def test_a_config_that_makes_no_sense_stops_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["check-hook", "examples.limit_sentences:LimitSentences", "--config={sentences: 0}"])
        == 2
    )
    assert "sentences must be at least 1" in capsys.readouterr().err


class _Service(BaseHTTPRequestHandler):
    """Refuses what holds "secret", fails on "broken", and is silent on "slow"."""

    seen: list[bytes]
    release: threading.Event

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append(body)
        if b"slow" in body:
            self.release.wait(30)
        answer = b'{"allow": false}' if b"secret" in body else b'{"allow": true}'
        self.send_response(500 if b"broken" in body else 200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[tuple[str, list[bytes]]]:
    """A real HTTP server, and the bodies it was sent."""
    seen: list[bytes] = []
    release = threading.Event()
    handler = type("Handler", (_Service,), {"seen": seen, "release": release})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/check", seen
    release.set()
    server.shutdown()
    thread.join(10)
    server.server_close()


def test_a_service_is_asked_by_sentences_and_its_refusal_ends_the_answer(
    service: tuple[str, list[bytes]],
) -> None:
    url, seen = service
    run = run_hook(AskService(url), ["It is", " fine. ", "Now the", " secret. ", "More."])
    assert (run.text, run.stop_reason) == ("It is fine. ", "service_refused")
    assert seen == [b'{"text":"It is fine. "}', b'{"text":"Now the secret. "}']


@pytest.mark.parametrize(("word", "timeout_ms"), [("broken", 5000.0), ("slow", 200.0)])
def test_a_service_that_fails_or_is_late_fails_the_request_closed(
    service: tuple[str, list[bytes]], word: str, timeout_ms: float
) -> None:
    run = run_hook(AskService(service[0]), [f"It is {word}. ", "More."], timeout_ms=timeout_ms)
    assert run.error is not None
    assert run.text == ""


def test_a_service_that_is_not_there_fails_the_request_closed() -> None:
    run = run_hook(AskService("http://127.0.0.1:9/check"), ["It is fine. "])
    assert run.error is not None
    assert run.text == ""


def test_an_answer_that_repeats_a_line_ends() -> None:
    hook = StopRepetition(times=3)
    run = run_hook(hook, ["a\nb", "\nb\n", "b\nc\n", "d"])
    assert (run.text, run.stop_reason) == ("a\nb\nb\nb\n", "repetition")
    assert run_hook(hook, ["b\nb\n\n\n\n\nc\nb\n", "x" * 3000]).stop_reason is None
    assert hook._requests == {}


def test_a_first_token_is_vetoed_in_prefill_alone() -> None:
    hook = VetoFirstToken(token_ids=[7])
    vetoed = run_hook(hook, [("{", (7,))], phase="prefill")
    assert (vetoed.text, vetoed.stop_reason) == ("", "first_token_vetoed")
    assert run_hook(hook, [("{", (7,)), ("}", (8,))]).text == "{}"
    assert run_hook(hook, [("a", (6,))], phase="prefill").text == "a"


def test_the_classifier_scores_and_blocks() -> None:
    def score(text: str) -> dict[str, Any]:
        return asyncio.run(
            Tone().score(ScoringContext(request_id="1", prompt="", generated_text=text))
        )

    assert (score("You stupid IDIOT!")["block"], score("You stupid IDIOT!")["score"]) == (
        True,
        0.667,
    )
    assert (score("How kind of you.")["block"], score("")["score"]) == (False, 0.0)


def _ask(stack: SimStack, text: str) -> dict[str, Any]:
    body = {"model": stack.model, "prompt": "Hi", **stack.saying(text)}
    choice: dict[str, Any] = stack.client.post("/v1/completions", body)["choices"][0]
    return choice


def test_a_veto_in_prefill_ends_the_request_where_it_propagates(model_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_path / "tokenizer.json"))
    first = tokenizer.encode("No way", add_special_tokens=False).ids[0]
    veto = {
        "path": "examples.veto_first_token:VetoFirstToken",
        "phases": ["prefill"],
        "config": {"token_ids": [first]},
    }
    settings = {"prefill_worker": {"propagate_terminate": True}}
    with sim_stack(hooks={"chain": [veto]}, settings=settings) as stack:
        choice = _ask(stack, "No way")
        assert (choice["text"], choice["stop_reason"]) == ("", "first_token_vetoed")
        assert _ask(stack, "Of course")["text"] == "Of course"
