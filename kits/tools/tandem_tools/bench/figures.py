"""From the answers to the figures that are shown."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

PERCENTILES = (50, 90, 99)


@dataclass(slots=True, frozen=True)
class TimedAnswer:
    """What came of one request. Times are in seconds; `began` and `ended` on one clock."""

    began: float
    ended: float
    failure: str = ""
    """Status and code; "" for an answer that came whole."""
    output_tokens: int = 0
    ttft: float | None = None
    """None where no token came."""
    itl: float | None = None
    """The mean time between its tokens; None for fewer than two."""


@dataclass(slots=True, frozen=True)
class BenchSlo:
    """Latency objectives, as the frontend counts them."""

    ttft_seconds: float
    itl_seconds: float

    def said(self) -> str:
        return f"SLO: TTFT {self.ttft_seconds:g} s, ITL {self.itl_seconds:g} s"

    def met_by(self, answer: TimedAnswer) -> bool:
        """Whether a whole answer met both objectives. One token has no time between tokens."""
        return (
            not answer.failure
            and answer.ttft is not None
            and answer.ttft <= self.ttft_seconds
            and (answer.itl is None or answer.itl <= self.itl_seconds)
        )


@dataclass(slots=True, frozen=True)
class Figures:
    """A run in numbers. `ttft` and `itl` are in seconds, one for each answer that has it, sorted;
    `seconds` is from the first request's start to the last one's end.
    """

    seconds: float
    succeeded: int
    failed: Mapping[str, int]
    output_tokens: int
    ttft: Sequence[float]
    itl: Sequence[float]
    met: int
    slo: BenchSlo

    @classmethod
    def of(cls, answers: Sequence[TimedAnswer], slo: BenchSlo) -> Figures:
        whole = [answer for answer in answers if not answer.failure]
        began = min((answer.began for answer in answers), default=0.0)
        return cls(
            seconds=max((answer.ended for answer in answers), default=0.0) - began,
            succeeded=len(whole),
            failed=Counter(answer.failure for answer in answers if answer.failure),
            output_tokens=sum(answer.output_tokens for answer in whole),
            ttft=sorted(answer.ttft for answer in whole if answer.ttft is not None),
            itl=sorted(answer.itl for answer in whole if answer.itl is not None),
            met=sum(map(slo.met_by, answers)),
            slo=slo,
        )

    @property
    def requests(self) -> int:
        return self.succeeded + sum(self.failed.values())

    def rows(self) -> Iterator[tuple[str, str]]:
        """The table: a name and a value each."""
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.failed.items()))
        yield "requests", f"{self.requests} in {self.seconds:.1f} s"
        yield "failed", f"{sum(self.failed.values())}" + (f" ({codes})" if codes else "")
        yield "output", f"{self._a_second(self.output_tokens):.1f} tokens/s"
        for name, values in (("TTFT", self.ttft), ("ITL", self.itl)):
            points = percentiles(values)
            yield name, ", ".join(f"{key} {it * 1000:.1f} ms" for key, it in points.items()) or "-"
        limits = f"TTFT {self.slo.ttft_seconds:g} s and ITL {self.slo.itl_seconds:g} s"
        yield "goodput", f"{self._a_second(self.met):.2f} requests/s within {limits}"
        share = f" ({self.met / self.requests:.1%})" if self.requests else ""
        yield "within both", f"{self.met} of {self.requests}{share}"

    def told(self) -> dict[str, object]:
        """For the file of figures. Seconds throughout."""
        return {
            "seconds": self.seconds,
            "requests": self.requests,
            "failed": dict(self.failed),
            "output_tokens": self.output_tokens,
            "output_tokens_per_second": self._a_second(self.output_tokens),
            "ttft_seconds": percentiles(self.ttft),
            "itl_seconds": percentiles(self.itl),
            "slo": asdict(self.slo),
            "within_both": self.met,
            "goodput_requests_per_second": self._a_second(self.met),
        }

    def _a_second(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90 and p99 of sorted values, between neighbours in proportion; {} of none."""
    if not values:
        return {}
    several = values if len(values) > 1 else [*values, *values]
    points = statistics.quantiles(several, n=100, method="inclusive")
    return {f"p{percent}": points[percent - 1] for percent in PERCENTILES}
