"""One streamed chat completion: timed and shown as a table, or held against what OpenAI's clients
rely on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from tandem.cli.client import Client
from tandem.cli.console import Console
from tandem.endings import FinishReason
from tandem.timeline import PARTS

CHAT = "/v1/chat/completions"
_HEAD = ("phase", "worker", "request_id", "hook verdicts", "hook time", "phase time")


class AnswerError(Exception):
    """The stream is not what a client of this API may expect, or it did not end in time."""


@dataclass(slots=True)
class StreamedAnswer:
    """What a client saw of one request. `arrivals`: when each chunk with text came, in seconds
    since the request was sent.
    """

    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    arrivals: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        return self.arrivals[0]

    @property
    def itl(self) -> float:
        """Mean time between tokens, by the tokens that the usage counts."""
        gaps = self.usage.get("completion_tokens", 0) - 1
        return (self.arrivals[-1] - self.arrivals[0]) / gaps if gaps > 0 else 0.0

    def add(self, event: Mapping[str, Any], seconds: float) -> str:
        """Take in an event that came so long after the request was sent. Returns its text."""
        added = ""
        self.usage = event.get("usage") or self.usage
        self.report = event.get("tandem") or self.report
        for choice in event["choices"]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.stop_reason = choice.get("stop_reason") or self.stop_reason
            if piece := choice["delta"].get("content"):
                self.arrivals.append(seconds)
                added += piece
        self.text += added
        return added

    # --- held against OpenAI's API ---------------------------------------------------------------

    def check_chunk(self, event: Mapping[str, Any]) -> None:
        """Raises AnswerError for an event that may not come next."""
        if event.get("object") != "chat.completion.chunk":
            raise AnswerError(f"an event is a {event.get('object')!r}, not a chunk")
        if event["choices"] and self.finish_reason is not None:
            raise AnswerError("a chunk came after the one with the finish_reason")
        self.ids.add(event["id"])

    def check(self) -> None:
        """Raises AnswerError where the whole lacks something."""
        if len(self.ids) != 1:
            raise AnswerError(f"the chunks have {len(self.ids)} ids, not one")
        if self.finish_reason not in get_args(FinishReason):
            raise AnswerError(f"the finish_reason is {self.finish_reason!r}")
        counts = [self.usage.get(f"{part}_tokens") for part in ("prompt", "completion", "total")]
        prompt, completion, total = (count if isinstance(count, int) else 0 for count in counts)
        if prompt < 1 or completion < 1 or prompt + completion != total:
            raise AnswerError(f"the usage does not add up: {dict(self.usage)}")

    # --- of a pair that reports -------------------------------------------------------------------

    def phase(self, name: str) -> Mapping[str, Any]:
        """The report of that phase; empty if it reported nothing."""
        phases = self.report.get("phases", ())
        return next((each for each in phases if each["phase"] == name), {})

    def kv(self) -> Mapping[str, Any]:
        """The phase that measured the hand-over: which one it is depends on the engine."""
        prefill, decode = self.phase("prefill"), self.phase("decode")
        return prefill if prefill.get("kv_bytes") else decode

    def problems(self) -> list[str]:
        """Why this was no answer through two workers."""
        prefill, decode = self.phase("prefill"), self.phase("decode")
        if not (prefill and decode):
            return [f"the report lacks a phase: {dict(self.report)}"]
        found = []
        if not self.text:
            found.append("no text came")
        if not self.kv()["kv_bytes"]:
            found.append("no KV bytes were moved")
        if not (prefill["emitted"] and decode["emitted"]):
            found.append("a hook was not called")
        return found

    def show(self, console: Console) -> None:
        """Print the table that closes an answer: its times, and a row for each phase."""
        phases = self.report.get("phases", ())
        if not (phases and self.arrivals):
            console.line("the frontend gave no report of this answer")
            return
        rows = [
            ("trace_id", str(self.report["trace_id"])),
            (
                "tokens",
                f"{self.usage['prompt_tokens']} in, {self.usage['completion_tokens']} out",
            ),
            ("TTFT", f"{self.ttft * 1e3:.1f} ms"),
            ("ITL", f"{self.itl * 1e3:.2f} ms mean"),
            ("KV", _kv(self.kv())),
            ("time", _times(self.report["timeline"][0])),
            ("finish_reason", f"{self.finish_reason}"),
        ]
        console.table(row for row in rows if row[1])
        console.line()
        console.table([_row(phase) for phase in phases], head=_HEAD)


def follow(
    client: Client, body: Mapping[str, Any], console: Console, *, margin: str = ""
) -> StreamedAnswer:
    """Stream a chat completion, its text appearing live behind a margin. Raises ApiError."""
    answer, sent = StreamedAnswer(), time.perf_counter()
    console.write(margin)
    try:
        for event in client.stream(CHAT, {**body, "stream_options": {"include_usage": True}}):
            if piece := answer.add(event, time.perf_counter() - sent):
                console.write(piece.replace("\n", f"\n{margin}"))
    finally:
        console.write("\n")
    return answer


def stream(client: Client, body: Mapping[str, Any], *, ends_at: float) -> StreamedAnswer:
    """Ask for a chat completion and read its stream to [DONE].

    `ends_at`, in time.monotonic's seconds, holds for the whole stream. Raises ApiError where the
    frontend refuses or the stream breaks, AnswerError where what came is wrong.
    """
    answer, sent = StreamedAnswer(), time.monotonic()
    try:
        for event in client.stream(CHAT, {**body, "stream_options": {"include_usage": True}}):
            answer.check_chunk(event)
            answer.add(event, time.monotonic() - sent)
            if time.monotonic() > ends_at:
                raise AnswerError("the time is over: the answer has not ended")
    except (KeyError, TypeError) as error:
        raise AnswerError(f"a chunk lacks what it must have: {error!r}") from error
    answer.check()
    return answer


def _row(phase: Mapping[str, Any]) -> tuple[str, ...]:
    verdicts = [
        f"{phase[name]} {word}"
        for name, word in (
            ("emitted", "emit"),
            ("suppressed", "suppress"),
            ("terminated", "terminate"),
        )
        if phase[name]
    ]
    return (
        phase["phase"],
        phase["worker"],
        str(phase["request_id"]),
        ", ".join(verdicts) or "none",
        f"{phase['hook_seconds'] * 1e3:.2f} ms",
        f"{phase['phase_seconds'] * 1e3:.1f} ms",
    )


def _times(choice: Mapping[str, Any]) -> str:
    """Where the time of a choice went, and why it waited."""
    seconds = {part: choice.get(f"{part}_seconds", 0.0) for part in PARTS}
    told = ", ".join(f"{part} {each * 1e3:.1f} ms" for part, each in seconds.items() if each)
    return f"{told}; queued: {cause}" if (cause := choice["queue_cause"]) else told


def _kv(phase: Mapping[str, Any]) -> str:
    """Empty where no KV was handed over: one worker served both phases."""
    size, seconds = phase.get("kv_bytes", 0), phase.get("kv_seconds", 0.0)
    if not size:
        return ""
    return f"{size:,} bytes in {seconds * 1e3:.1f} ms over {phase['kv_transport']}"
