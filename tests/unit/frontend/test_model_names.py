"""The file of names of models, and which model a request for a name goes to."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from one_case import one_case
from prometheus_client import CollectorRegistry

from tandem.errors import ConfigError
from tandem_frontend.metrics import MOST_SERIES, OTHER, ModelMetrics
from tandem_frontend.model_names import (
    MAX_BYTES,
    MAX_LENGTH,
    MAX_NAMES,
    MAX_TARGETS,
    ModelTarget,
    choose,
    parse,
)

HALVES = (ModelTarget("a", 1.0), ModelTarget("b", 1.0))


def test_a_name_stands_for_a_model_or_for_several_with_weights() -> None:
    content = b"gpt-4o: a\nchat: {a: 90, b: 10.5}\n# a comment\n"
    assert parse(content, "f") == {
        "gpt-4o": (ModelTarget("a", 1.0),),
        "chat": (ModelTarget("a", 90.0), ModelTarget("b", 10.5)),
    }
    assert parse(b'{"x": {"a": 0, "b": 1}}', "f") == {
        "x": (ModelTarget("a", 0.0), ModelTarget("b", 1.0))
    }
    assert parse(b"", "f") == {}


@pytest.mark.promise("S6-326")
@one_case(
    ("content", "words"),
    [
        ("[a, b]", "must hold a mapping"),
        ("a: [b]", "`a` must be a model, or models with their weights"),
        ("a: {}", "`a` must be a model"),
        ("a: 5", "`a` must be a model"),
        ("a: ''", "is no name"),
        ("on: b", "is no name"),
        (f"{'n' * (MAX_LENGTH + 1)}: b", "is no name"),
        ("a: {b: -1}", "weights of `a` must be from 0"),
        ("a: {b: .nan}", "weights of `a` must be from 0"),
        ("a: {b: .inf, c: 1}", "weights of `a` must be from 0"),
        ("a: {b: 1000001}", "weights of `a` must be from 0"),
        ("a: {b: true}", "a weight of `a` is no number"),
        ("a: {b: '1'}", "a weight of `a` is no number"),
        ("a: {b: 0, c: 0}", "`a` has no model with a weight above 0"),
        ("a: {b: 1", "cannot read names"),
        ("a: !!python/object:os.system {}", "cannot read names"),
        ("a: \x00", "cannot read names"),
        ("[" * 5_000, "cannot read names"),
        ("#" * (MAX_BYTES + 1), "larger than"),
        (f"a: {json.dumps({f'm{i}': 1 for i in range(MAX_TARGETS + 1)})}", "has more than"),
        ("\n".join(f"n{i}: m" for i in range(MAX_NAMES + 1)), f"{MAX_NAMES} are the most"),
    ],
)
def test_a_file_that_says_nothing_sensible_is_refused(content: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(content.encode(), "names.yaml")


@pytest.mark.promise("S6-326")
def test_draws_are_divided_by_the_weights() -> None:
    draw = random.Random(17).random
    targets = (
        ModelTarget("a", 6.0),
        ModelTarget("none", 0.0),
        ModelTarget("b", 3.0),
        ModelTarget("c", 1.0),
    )
    went = Counter(choose("chat", targets, None, draw) for _ in range(10_000))
    assert "none" not in went
    for name, expected in (("a", 6_000), ("b", 3_000), ("c", 1_000)):
        assert abs(went[name] - expected) < 200, went


def test_the_ends_of_a_draw_are_in_a_share() -> None:
    edge = 1 - 2**-53
    assert choose("n", (ModelTarget("a", 1.0), ModelTarget("b", 0.0)), None, lambda: edge) == "a"
    assert choose("n", (ModelTarget("a", 0.0), ModelTarget("b", 1.0)), None, lambda: 0.0) == "b"
    thirds = tuple(ModelTarget(name, 0.1) for name in "abc")
    assert choose("n", thirds, None, lambda: edge) == "c"


@pytest.mark.promise("S6-326")
def test_users_stay_where_they_are_and_move_with_the_share_that_moves() -> None:
    def never() -> float:
        raise AssertionError("a user is not drawn")

    users = [f"user-{number}" for number in range(2_000)]

    def where(name: str, *weights: float) -> dict[str, str]:
        targets = tuple(ModelTarget(model, each) for model, each in zip("ab", weights, strict=True))
        return {user: choose(name, targets, user, never) for user in users}

    half, more = where("chat", 1, 1), where("chat", 3, 1)
    assert half == where("chat", 50, 50)
    assert abs(Counter(half.values())["a"] - 1_000) < 120
    assert abs(Counter(more.values())["a"] - 1_500) < 120
    assert {user for user in users if half[user] == "a"} < {u for u in users if more[u] == "a"}
    assert where("other", 1, 1) != half, "each name divides its users anew"


def test_surrogates_and_empty_users_are_users_and_none() -> None:
    assert choose("chat", HALVES, "\ud800", lambda: 0.0) in "ab"
    assert choose("chat", HALVES, "", lambda: 0.9) == "b"


def test_models_that_come_and_go_make_no_series_without_bound() -> None:
    registry = CollectorRegistry()
    metrics = ModelMetrics(registry)
    for number in range(MOST_SERIES + 5):
        metrics.loaded(f"m{number}", ready=lambda: 1)
        metrics.count(f"m{number}", failed=False)
        metrics.unloaded(f"m{number}")
    samples: list[Any] = [each for family in registry.collect() for each in family.samples]
    counted = [each for each in samples if each.name == "tandem_frontend_model_requests_total"]
    assert len({each.labels["model"] for each in counted}) == MOST_SERIES + 1
    (others,) = [
        each.value for each in counted if each.labels == {"model": OTHER, "outcome": "success"}
    ]
    assert others == 5
    assert not [each for each in samples if "info" in each.name or "ready" in each.name]
