"""`tandem verify`: whether a deployment serves, and whether its KV cache really moves. `helm test`
runs it; it needs no torch, no model and no access to the cluster.

A deployment can answer perfectly on its decode workers alone: only the workers' own counters show
that prefill computed the prompt and that its KV cache arrived.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tandem.cli import options, worker_counts
from tandem.cli.answer import AnswerError, StreamedAnswer, stream
from tandem.cli.client import ApiError, Client
from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.cli.worker_counts import MetricsTarget, PhaseCounts, Reading
from tandem.logits.builtin import HELLO_WORLD
from tandem.logits.spec import FORCED_SEQUENCE

Check = Callable[[], None]
_OFFERED = f"the answer is made by {FORCED_SEQUENCE}, which the frontend must offer to clients."
POLL_SECONDS = 0.5
PROBE_SECONDS = 5.0
SETTLE_SECONDS = 10.0
"""A worker counts a sequence when it closes, which may be just after the client saw the end."""
ANSWER_TOKENS = 32
FORCED_TOKENS = 256
"""Room for a forced answer, which ends itself."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add("--url", required=True, help="URL of the frontend, http:// or https://.")
    add("--model", default="", help="Model to ask. [the first one that is served]")
    options.add_trust(parser)
    add(
        "--kv HOST:PORT,...",
        default="",
        help="Metrics ports of all workers; a name stands for every address that it has. Checks "
        "that KV cache moved from prefill to decode.",
    )
    add(
        "--kv-bytes-per-token N",
        int,
        default=8,
        help="Fewest KV bytes that must move for each prompt token. [%(default)s, the least of"
        " any engine]",
    )
    add(
        "--expect-forced",
        action="store_true",
        help=f"Check that a forced answer is exact, first token included; {_OFFERED}",
    )
    add(
        "--expect-terminate PHRASE",
        default="",
        help=f"Check that an output hook ends an answer before PHRASE; {_OFFERED}",
    )
    add(
        "--timeout SECONDS",
        float,
        default=120.0,
        help="Time for all checks together. [%(default)s]",
    )


def verify(arguments: argparse.Namespace, console: Console) -> int:
    """Raises ConfigError for a question that cannot be asked, ApiError for a bad address."""
    verification = Verification(
        console,
        url=arguments.url,
        model=arguments.model,
        api_key=options.api_key(arguments.api_key_env),
        ca_file=arguments.ca_file,
        workers=worker_counts.targets(arguments.kv),
        kv_bytes_per_token=arguments.kv_bytes_per_token,
        timeout_seconds=arguments.timeout,
    )
    checks: list[Check] = [verification.a_completion_streams]
    if arguments.expect_forced:
        checks.append(verification.a_sequence_is_forced)
    if phrase := arguments.expect_terminate:
        checks.append(partial(verification.a_hook_ends_an_answer, phrase))
    problems = _failures([verification.it_is_ready], console) or _failures(checks, console)
    console.result({"ok": not problems, "held": verification.held, "problems": problems})
    if problems:
        console.failed(f"{len(problems)} of {len(checks)} checks failed")
        return 1
    console.done(console.bold("the deployment serves"))
    return 0


def _failures(checks: Sequence[Check], console: Console) -> list[str]:
    found = []
    for check in checks:
        try:
            check()
        except (CheckError, ApiError) as error:
            console.failed(str(error))
            found.append(str(error))
    return found


class CheckError(Exception):
    """Something that was checked does not hold."""


class Verification:
    """The checks. Each says what held, and raises CheckError or ApiError where it does not."""

    def __init__(
        self,
        console: Console,
        *,
        url: str,
        model: str,
        api_key: str,
        ca_file: Path | None,
        workers: list[MetricsTarget],
        kv_bytes_per_token: int,
        timeout_seconds: float,
    ) -> None:
        """`timeout_seconds` is for all checks together. Raises ApiError for a bad `url`, and
        ConfigError for a `ca_file` that cannot be read.
        """
        self._console = console
        self._client = Client(
            url, timeout_seconds=timeout_seconds, api_key=api_key, ca_file=ca_file
        )
        self._probe = Client(url, timeout_seconds=PROBE_SECONDS, ca_file=ca_file)
        self._model = model
        self._workers = workers
        self._kv_bytes_per_token = kv_bytes_per_token
        self._ends_at = time.monotonic() + timeout_seconds
        self.held: list[str] = []
        """Sentences about what was seen to hold."""

    def _hold(self, what: str, seconds: float | None = None) -> None:
        self.held.append(what)
        self._console.done(what, seconds)

    def it_is_ready(self) -> None:
        """The frontend says that a request would succeed now, and serves the model."""
        began = time.monotonic()
        while (status := self._probe.status("/ready")) != 200:
            why = f"/ready answers {status}" if status else "nobody answers"
            self._console.live(
                f"waiting until the frontend is ready: {why}", time.monotonic() - began
            )
            self._pause(f"not ready: {why}")
        self._hold("ready", time.monotonic() - began)
        served = [each["id"] for each in self._client.get("/v1/models")["data"]]
        self._model = self._model or served[0]
        if self._model not in served:
            raise CheckError(f"{self._model!r} is not served; {', '.join(served)} is")

    def a_completion_streams(self) -> None:
        """A chat completion streams, and where the workers are known, its KV cache moves."""
        before = self._read_workers()
        # A prompt that no cache holds: all of it has to move.
        question = f"Tell me a story about the number {secrets.randbits(64)}."
        answer = self._ask(question, {"max_tokens": ANSWER_TOKENS})
        if not answer.text and answer.stop_reason is None:
            raise CheckError("the answer has no text")
        self._hold(
            f"{self._model} streamed {answer.usage['completion_tokens']} tokens in"
            f" {len(answer.arrivals)} chunks, prompt {answer.usage['prompt_tokens']} tokens,"
            f" finish_reason {answer.finish_reason!r}"
        )
        if self._workers:
            least = answer.usage["prompt_tokens"] * self._kv_bytes_per_token
            self._kv_moved(before, least=least)

    def a_sequence_is_forced(self) -> None:
        """A logits processor is exact in both phases, first token included."""
        answer = self._force(HELLO_WORLD)
        if answer.text != HELLO_WORLD or answer.finish_reason != "stop":
            raise CheckError(f"forced {HELLO_WORLD!r}, but the answer is another")
        self._hold(f"a logits processor forced {HELLO_WORLD!r} exactly")

    def a_hook_ends_an_answer(self, phrase: str) -> None:
        """The operator's output hook lets nothing of a phrase out."""
        answer = self._force(f"All went well until {phrase} came up, and this is never shown.")
        if phrase.lower() in answer.text.lower():
            raise CheckError("the phrase was shown: no output hook ended the answer")
        if answer.stop_reason is None:
            raise CheckError("the phrase did not come, but no hook says that it ended the answer")
        self._hold(f"an output hook ended an answer, stop_reason {answer.stop_reason!r}")

    def _kv_moved(self, before: Reading, *, least: int) -> None:
        settled_at = time.monotonic() + SETTLE_SECONDS
        while True:
            grown = worker_counts.growth(before, self._read_workers())
            problem = _problem(grown, least)
            if not problem:
                break
            if time.monotonic() >= settled_at:
                raise CheckError(problem)
            self._pause(problem)
        self._hold(f"KV cache moved between two workers: {_told(grown)}")

    def _read_workers(self) -> Reading:
        """Asks again while a name or a port is not there: DNS lags behind readiness."""
        while self._workers:
            try:
                return worker_counts.read(self._workers, timeout_seconds=PROBE_SECONDS)
            except ApiError as error:
                self._pause(str(error))
        return {}

    def _force(self, text: str) -> StreamedAnswer:
        processor = {"name": FORCED_SEQUENCE, "args": {"text": text}}
        fields = {"max_tokens": FORCED_TOKENS, "logits_processors": [processor]}
        return self._ask("Say what you must.", fields)

    def _ask(self, question: str, fields: Mapping[str, object]) -> StreamedAnswer:
        messages = [{"role": "user", "content": question}]
        body = {"model": self._model, "messages": messages, "temperature": 0, **fields}
        try:
            return stream(self._client, body, ends_at=self._ends_at)
        except AnswerError as error:
            raise CheckError(str(error)) from error

    def _pause(self, why: str) -> None:
        """Raises CheckError, with what is awaited, when the time is over."""
        if time.monotonic() + POLL_SECONDS > self._ends_at:
            raise CheckError(f"the time is over: {why}")
        time.sleep(POLL_SECONDS)


def _problem(grown: Mapping[str, PhaseCounts], least: int) -> str:
    """Why the counters do not show a hand-over of `least` bytes; "" where they do."""
    for phase in ("prefill", "decode"):
        if phase not in grown:
            return f"the metrics ports belong to no {phase} worker"
        if not grown[phase].legs:
            return f"no {phase} worker completed a sequence: {_told(grown)}"
        if grown[phase].kv_bytes < least:
            return f"KV cache did not move, at least {least:,} bytes had to: {_told(grown)}"
    return ""


def _told(grown: Mapping[str, PhaseCounts]) -> str:
    return ", ".join(
        f"{phase} {counts.legs:.0f} sequences and {counts.kv_bytes:,.0f} bytes"
        for phase, counts in sorted(grown.items(), reverse=True)
    )


COMMAND = Command(add_arguments, verify, example="tandem verify --url http://127.0.0.1:8000")
