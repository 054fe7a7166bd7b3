"""What replays found, as a table, as JSON and as a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tandem_tools.bench.figures import Figures, percentiles
from tandem_tools.trace_replay.reading import Readings

HEAD = (
    "workers", "policy", "hit rate", "ideal", "TTFT p50", "p90", "ITL p50", "p90",
    "failed", "within both", "goodput", "a worker",
)  # fmt: skip
HEAD_BY_LENGTH = ("TTFT of short p50", "p90", "of long p50", "p90")
ALIKE = 0.01
"""Shares of requests that differ by less are the same for a verdict."""


@dataclass(slots=True, frozen=True)
class ReplayResult:
    """Figures of one fleet with one policy, for a trace."""

    fleet: str
    workers: int
    """Workers of the whole fleet."""
    aggregated: bool
    """Whether every worker does both phases."""
    policy: str
    hit_rate: float
    ideal_hit_rate: float
    """What one cache in the place of all would have come to."""
    figures: Figures
    by_length: tuple[Sequence[float], ...] = ()
    """TTFT of short prompts and of long ones, sorted, in seconds; empty: nobody asked."""
    ways: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Attempts by way and by the reason for that way."""

    readings: Readings | None = None
    """What reading prompts came to; None: the fleet does not say what it takes."""

    @property
    def share(self) -> float:
        """How many of the requests met both objectives."""
        return self.figures.met / self.figures.requests

    @property
    def goodput(self) -> float:
        """How many did it a second."""
        return self.figures.met / self.figures.seconds if self.figures.seconds else 0.0

    @property
    def name(self) -> str:
        return f"{self.fleet} by {self.policy}"

    def row(self) -> tuple[str, ...]:
        """The result's line of the table, under HEAD."""
        ttft, itl = percentiles(self.figures.ttft), percentiles(self.figures.itl)
        return (
            self.fleet,
            self.policy,
            f"{self.hit_rate:.3f}",
            f"{self.ideal_hit_rate:.3f}",
            *(_seconds(ttft.get(name)) for name in ("p50", "p90")),
            *(_milliseconds(itl.get(name)) for name in ("p50", "p90")),
            str(sum(self.figures.failed.values())),
            f"{self.share:.1%}",
            f"{self.goodput:.2f}/s",
            f"{self.goodput / self.workers:.3f}/s",
            *(
                _seconds(percentiles(each).get(name))
                for each in self.by_length
                for name in ("p50", "p90")
            ),
        )

    def said_ways(self) -> str:
        """How many went which way; empty where there is but one."""
        if len({way for way, _ in self.ways}) < 2:
            return ""
        told = (f"{n:,} {way} ({why})" for (way, why), n in sorted(self.ways.items()))
        return f"{self.name}: {', '.join(told)}"

    def said_reading(self) -> str:
        """What reading prompts came to; empty where it takes no time."""
        told = self._reading()
        if not told:
            return ""
        return (
            f"{self.name}: reading took {_milliseconds(told['cpu_seconds'])} of CPU in the mean and"
            f" waited {_milliseconds(told['wait_seconds_p90'])} (p90);"
            f" {told['known_rate']:.1%} of prompt tokens were known"
        )

    def _reading(self) -> dict[str, float]:
        read = self.readings
        if read is None or not read.waits:
            return {}
        return {
            "cpu_seconds": read.cpu_seconds / len(read.waits),
            "wait_seconds_p90": percentiles(sorted(read.waits))["p90"],
            "known_rate": read.known_rate,
        }

    def told(self) -> dict[str, object]:
        """For the file of figures. Seconds throughout."""
        ways = sorted(self.ways.items())
        return {
            "workers": self.fleet,
            "policy": self.policy,
            "hit_rate": self.hit_rate,
            "ideal_hit_rate": self.ideal_hit_rate,
            "reading": self._reading(),
            "ways": [{"way": way, "reason": why, "count": n} for (way, why), n in ways],
            "ttft_seconds_by_length": [percentiles(each) for each in self.by_length],
            **self.figures.told(),
        }


def verdict(results: Sequence[ReplayResult]) -> Iterator[str]:
    """The best of all; and whether to disaggregate, where fleets with pairs and fleets without were
    tried: by the share of requests that met both objectives.
    """
    if len(results) > 1:
        best = max(results, key=_worth)
        yield f"best: {_said(best)}"
    pairs = [each for each in results if not each.aggregated]
    alone = [each for each in results if each.aggregated]
    if pairs and alone:
        yield _disaggregate(max(pairs, key=_worth), max(alone, key=_worth))


def _disaggregate(pairs: ReplayResult, alone: ReplayResult) -> str:
    if abs(pairs.share - alone.share) < ALIKE:
        return (
            f"whether to disaggregate makes no difference at this load: {_said(pairs)}; "
            f"{_said(alone)}"
        )
    if pairs.share > alone.share:
        return f"disaggregate: {_said(pairs)}, and {_said(alone)}"
    return f"do not disaggregate: {_said(alone)}, and {_said(pairs)}"


def _said(result: ReplayResult) -> str:
    return f"{result.name} keeps {result.share:.1%} within both objectives"


def _worth(result: ReplayResult) -> tuple[float, float]:
    """What is better compares as larger: more requests within both, then an earlier first token."""
    ttft = percentiles(result.figures.ttft)
    return result.share, -ttft.get("p90", float("inf"))


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.1f} ms"
