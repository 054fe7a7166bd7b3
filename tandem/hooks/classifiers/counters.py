"""What the classifiers of a process did. Plain numbers: the metrics read them at a scrape."""

from __future__ import annotations

from typing import Literal

from tandem.histogram import Histogram

Decision = Literal["pass", "block", "annotate", "error", "timeout", "cancelled"]
DECISIONS: tuple[Decision, ...] = ("pass", "block", "annotate", "error", "timeout", "cancelled")
CLASSIFIER_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Buckets for a classifier's call: from a rule in the process to a model elsewhere."""


class ClassifierCounters:
    """What one classifier did (S4-120)."""

    __slots__ = ("running", "seconds", "verdicts")

    def __init__(self) -> None:
        self.verdicts: dict[Decision, int] = dict.fromkeys(DECISIONS, 0)
        """A blocking classifier passes or blocks, any other annotates. `cancelled`: the request
        ended first.
        """
        self.seconds = Histogram(CLASSIFIER_SECONDS)
        """How long each call took, the wait for its turn included."""
        self.running = 0
        """Calls that have not returned, now; those that were given up and do not end count too."""

    @property
    def calls(self) -> int:
        return sum(self.verdicts.values())

    def add(self, decision: Decision, seconds: float) -> None:
        """One call, and how it went."""
        self.verdicts[decision] += 1
        self.seconds.observe(seconds)
