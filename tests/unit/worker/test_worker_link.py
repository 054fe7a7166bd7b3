"""What a router reads of the frames that a worker writes by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from worker_harness import taken

from tandem.byte_budget import ByteBudget
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.frames import parse
from tandem.wire.prompt_chunks import ChunkRoom, ReadChunks
from tandem.worker.core.outgoing import Outgoing
from tandem.worker.link import RouterLink
from tandem.worker.servicer import PhasesServicer

LOAD = worker_pb2.Load(open_legs=300)


def link() -> tuple[Outgoing, RouterLink]:
    """One that has reported its load."""
    outgoing = Outgoing(ByteBudget().allotment())
    made = RouterLink(
        number=1,
        peer="a router",
        outgoing=outgoing,
        load=lambda: LOAD,
        chunks=ReadChunks(ChunkRoom(0)),
    )
    assert taken(made) == worker_pb2.WorkerFrame(load=LOAD)
    return outgoing, made


@given(rows=st.dictionaries(st.integers(0, 2**32 - 1), st.text(max_size=300), max_size=5))
def test_each_destination_is_given_what_is_for_it(rows: dict[int, str]) -> None:
    outgoing, made = link()
    for destination, text in rows.items():
        outgoing.draft(destination).add(2**63, 2**31, 1, text)
    frame = taken(made)
    if not rows:
        assert frame is None
        return
    assert frame is not None
    assert {each.destination: parse(each.payload) for each in frame.envelopes} == {
        destination: common_pb2.TokenColumns(
            sequence=[2**63], offset=[2**31], token_count=[1], text=[text]
        )
        for destination, text in rows.items()
    }
    assert frame == worker_pb2.WorkerFrame(envelopes=frame.envelopes)


def test_events_and_load_come_with_rows_and_alone() -> None:
    outgoing, made = link()
    event = worker_pb2.LegEvent(leg=7, started=worker_pb2.LegStarted())
    outgoing.draft(1).add(5, 0, 1, "a")
    outgoing.events.append(event)
    made.report_load()
    frame = taken(made)
    assert frame is not None
    assert (len(frame.envelopes), [*frame.events], frame.load) == (1, [event], LOAD)
    outgoing.events.append(event)
    assert taken(made) == worker_pb2.WorkerFrame(events=[event])
    assert taken(made) is None


def test_every_method_of_a_worker_is_served() -> None:
    served: dict[str, Any] = {}
    server = SimpleNamespace(add_registered_method_handlers=served.__setitem__)
    PhasesServicer({}).add_to(server)
    service = worker_pb2.DESCRIPTOR.services_by_name["Worker"]
    assert list(served) == [service.full_name]
    assert served[service.full_name].keys() == {each.name for each in service.methods}
