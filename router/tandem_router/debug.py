"""What the admin port tells of single requests and workers, as JSON: nothing that a prompt or an
output says.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from tandem import story_pages
from tandem.admin import Document
from tandem.prefix_blocks import session_text
from tandem_router.core.snapshot import UNKNOWN, TrustSnapshot, WorkerSnapshot
from tandem_router.relay import Relay
from tandem_router.workers import Workers


def request(relay: Relay, trace_id: str) -> Document:
    """The stories of a trace id, the latest first. 400: it is none; 404: nobody knows of it."""
    return story_pages.request(trace_id, relay.open_stories(trace_id), relay.book)


def requests(relay: Relay) -> Document:
    """The requests that ended last, and the slowest of those that are remembered."""
    return story_pages.requests(relay.book)


def fleet(relay: Relay, workers: Workers) -> Document:
    """The queue, what is open, and every worker that this router serves, for `tandem top`."""
    core = relay.core.snapshot()
    connected = {each.address: each for each in core.workers}
    answer = {
        "queue_length": core.queue_length + relay.early,
        "queue_limit": core.queue_limit,
        "open_sequences": core.open_sequences,
        "frontends": core.frontends,
        "ready_pairs": core.ready_pairs,
        "draining": core.draining,
        "routers": sorted(workers.share.routers),
        "discovered": {phase.value: count for phase, count in workers.discovered().items()},
        "served": {phase.value: count for phase, count in workers.served().items()},
        "requests": core.counts.requests,
        "retries": core.counts.retries,
        "requeued": core.counts.requeued,
        "workers": [
            {
                "address": told.address,
                "name": told.name,
                "phase": told.phase.value,
                "connected": told.connected,
                "refused": told.refused,
                "silent_seconds": round(told.silent_seconds, 3),
                **_slots(connected.get(told.address)),
                **_trust(core.trusts.get(told.address, UNKNOWN)),
            }
            for told in workers.told()
        ],
    }
    return Document(HTTPStatus.OK, msgspec.json.encode(answer))


def lost_hits(relay: Relay) -> Document:
    """Sessions whose prompts differ at the same early place each time, the latest first."""
    lost = relay.core.snapshot().lost_hits
    told = [{**each._asdict(), "session": session_text(each.session)} for each in lost]
    return Document(HTTPStatus.OK, msgspec.json.encode({"sessions": told}))


def _slots(worker: WorkerSnapshot | None) -> dict[str, int]:
    names = ("open_legs", "other_legs", "slots", "overdue_legs")
    return {name: 0 if worker is None else getattr(worker, name) for name in names}


def _trust(trust: TrustSnapshot) -> dict[str, str | int]:
    return {
        "faults": trust.faults,
        "standing": trust.reputation.value,
        "failed_legs": trust.failed,
        "ended_legs": trust.ended,
    }
