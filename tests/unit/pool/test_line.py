"""Whose turn comes next, and who goes when too many wait."""

from __future__ import annotations

from tandem.pool.turns import Line, PlaceInLine


class Job(PlaceInLine):
    """A turn that nobody waits for."""

    def __init__(self, tenant: str, number: int = 0) -> None:
        self.tenant = tenant
        self.number = number


def line_of(*tenants: str, most: int = 8) -> Line:
    line: Line = Line(most)
    for number, tenant in enumerate(tenants):
        assert line.has_room(tenant)
        line.add(Job(tenant, number))
    return line


def turns(line: Line) -> list[tuple[str, int]]:
    order = []
    while line:
        job = line.next()
        assert isinstance(job, Job)
        assert job not in line
        order.append((job.tenant, job.number))
    return order


def test_who_comes_again_waits_behind_the_others() -> None:
    line = line_of("a", "b")
    assert line.next().tenant == "a"
    line.add(Job("a", 7))
    assert turns(line) == [("b", 1), ("a", 7)]


def test_the_last_of_the_longest_goes_for_a_key_that_has_few() -> None:
    line = line_of("a", "a", "a", "b", most=4)
    assert not line.has_room("a")
    assert line.has_room("b")
    gone = line.add(Job("b", 9))
    assert isinstance(gone, Job)
    assert (gone.tenant, gone.number) == ("a", 2)
    assert gone not in line
    assert not line.has_room("b")  # it would only take a place from one that has as few
    assert line.has_room("c")
    assert turns(line) == [("a", 0), ("b", 3), ("a", 1), ("b", 9)]
    assert not line_of("a", "a", "b", "c", most=4).has_room("b")


def test_without_keys_so_many_wait_and_no_more() -> None:
    line = line_of("", "", most=2)
    assert not line.has_room("")
    line.next()
    assert line.has_room("")
    assert line.add(Job("")) is None


def test_a_form_stays_where_its_turn_comes_as_soon() -> None:
    line = line_of("a", "b")
    first = Job("a", 4)
    line.add(first)
    line.favour(first, "b")
    assert first.tenant == "a"
