"""What load is asked for, and how AIPerf's configuration says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tandem_tools.trace import TracedRequest

PROMPTS = 1000
"""Prompts of a run that time bounds; then they come again, and a prefix cache has them."""


@dataclass(slots=True, frozen=True)
class BenchLoad:
    """A closed loop (`concurrency`), an open one (`rate`, requests a second), or a trace; the
    others are 0 or empty. `requests` and `seconds`: the bounds of a loop, 0 for none.
    """

    concurrency: int = 0
    rate: float = 0.0
    requests: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    trace: tuple[TracedRequest, ...] = ()

    @property
    def expected(self) -> int:
        """How many requests will be sent; 0 where time decides it."""
        return len(self.trace) or (0 if self.seconds else self.requests)

    def said(self) -> tuple[str, ...]:
        """For people, in parts."""
        if self.trace:
            return (f"a trace of {len(self.trace):,} requests",)
        how = f"{self.rate:g} requests/s" if self.rate else f"{self.concurrency} requests at once"
        bounds = (f"{self.requests:,} requests" * bool(self.requests), f"{self.seconds:g} s")
        until = bounds if self.seconds else bounds[:1]
        lengths = f"{self.prompt_tokens} prompt and {self.output_tokens} output tokens each"
        return (how, *filter(None, until), lengths)

    def told(self) -> dict[str, object]:
        """For the file of figures."""
        if self.trace:
            return {"kind": "trace", "requests": len(self.trace)}
        return {
            "kind": "rate" if self.rate else "concurrency",
            "value": self.rate or self.concurrency,
            "requests": self.requests or None,
            "seconds": self.seconds or None,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
        }

    def phase(self, timeout_seconds: float) -> dict[str, object]:
        """What AIPerf has in `phases`. What is open when the time is over has `timeout_seconds`."""
        if self.trace:
            return {"type": "fixed_schedule", "auto_offset": True}
        how = (
            {"type": "poisson", "rate": self.rate}
            if self.rate
            else {"type": "concurrency", "concurrency": self.concurrency}
        )
        timed = {"duration": self.seconds, "grace_period": timeout_seconds} if self.seconds else {}
        counted = {"requests": self.requests} if self.requests else {}
        return {**how, **counted, **timed}

    def dataset(self, folder: Path) -> dict[str, Any]:
        """What AIPerf has in `datasets`. A trace is written into `folder`."""
        if self.trace:
            path = folder / "trace.jsonl"
            lines = [msgspec.json.encode(request) for request in self.trace]
            path.write_bytes(b"\n".join(lines) + b"\n")
            return {"type": "file", "path": str(path), "format": "mooncake_trace"}
        lengths = {"isl": {"mean": self.prompt_tokens}, "osl": {"mean": self.output_tokens}}
        return {"type": "synthetic", "entries": self.expected or PROMPTS, "prompts": lengths}
