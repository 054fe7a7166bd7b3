"""The histogram of all components, against what prometheus_client counts of the same values."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Reference

from tandem.histogram import Histogram

BOUNDS = (0.001, 0.5, 1, 2.5)
VALUES = (0.0, 0.001, 0.0011, 0.5, 1, 1.5, 2.5, 2.6, 1000.0)
"""Each bound itself, and values on both sides of it."""


def test_buckets_names_and_total_are_those_of_prometheus_client() -> None:
    registry = CollectorRegistry()
    reference = Reference("any", "", buckets=BOUNDS, registry=registry)
    ours = Histogram(BOUNDS)
    for value in VALUES:
        reference.observe(value)
        ours.observe(value)
    (family,) = registry.collect()
    samples = [each for each in family.samples if each.name == "any_bucket"]
    assert ours.buckets() == [(each.labels["le"], each.value) for each in samples]
    assert ours.total == registry.get_sample_value("any_sum")


def test_adding_a_value_several_times_is_as_observing_it_so_often() -> None:
    added, observed = Histogram(BOUNDS), Histogram(BOUNDS)
    added.add(0.75, 3)
    for _ in range(3):
        observed.observe(0.75)
    assert (added.counts, added.total) == (observed.counts, observed.total)
