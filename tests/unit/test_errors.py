"""The error tree: every failure keeps its meaning across the wire."""

from __future__ import annotations

from one_case import one_case

from tandem import errors
from tandem.v1 import common_pb2

ALL = sorted(set(errors._BY_CODE.values()), key=lambda cls: cls.code)


@one_case("cls", ALL, ids=lambda cls: cls.code)
def test_an_error_survives_the_wire(cls: type[errors.TandemError]) -> None:
    sent = cls("because", phase=common_pb2.PHASE_DECODE, param="n")
    received = errors.from_proto(common_pb2.Error.FromString(sent.to_proto().SerializeToString()))
    assert type(received) is cls
    assert (received.message, received.phase, received.param) == (sent.message, sent.phase, "n")


def test_an_unknown_code_is_an_internal_error() -> None:
    assert type(errors.from_proto(common_pb2.Error(code="new"))) is errors.InternalError


def test_every_leaf_has_a_code_of_its_own() -> None:
    leaves = [cls for cls in set(errors._BY_CODE.values()) if not cls.__subclasses__()]
    codes = [cls.code for cls in leaves]
    assert len(codes) == len(set(codes))


def test_the_drawn_tree_names_every_class() -> None:
    drawn = errors.__doc__ or ""
    tree = [cls for cls in errors._leaves(errors.TandemError) if cls.__module__ == errors.__name__]
    classes = [*tree, errors.StartError, errors.ConfigError, errors.LoadError]
    assert [cls.__name__ for cls in classes if cls.__name__ not in drawn] == []
