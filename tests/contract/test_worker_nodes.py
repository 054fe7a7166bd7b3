"""A worker on two nodes: two processes for each phase, which share the model by tensor parallelism.

Real SGLang on the CPU, over loopback. What differs between machines (NCCL, their network) is not in
it.
"""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from worker_pair import END_SECONDS, WITHOUT_FORMS, WorkerProcess, connected, launched

from tandem.free_ports import FreePorts
from tandem.v1 import common_pb2

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
READY_SECONDS = 400.0
OPTIONS = f"--engine-options=device=cpu,tensor_parallel=2,{WITHOUT_FORMS}"


@dataclass
class Group:
    leader: WorkerProcess
    follower: WorkerProcess
    probes: str
    """Address of the follower's."""


@pytest.fixture
def groups(model_path: Path, tmp_path: Path) -> Iterator[dict[str, Group]]:
    with ExitStack() as stack:
        free = FreePorts(stack)
        started: dict[str, list[WorkerProcess]] = {}
        for phase in ("prefill", "decode"):
            leader = free.address()
            started[phase] = [
                stack.enter_context(
                    launched(
                        phase,
                        "sglang",
                        model_path,
                        tmp_path / f"{phase}-{rank}.log",
                        OPTIONS,
                        "--nodes=2",
                        f"--node-rank={rank}",
                        f"--leader={leader}",
                    )
                )
                for rank in (0, 1)
            ]
        deadline = time.monotonic() + READY_SECONDS
        found = {}
        for phase, (leading, following) in started.items():
            probes = following.wait_for("following", deadline)[0]["address"]
            leading.wait_serving(deadline)
            found[phase] = Group(leading, following, f"http://{probes}")
        yield found


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


async def test_two_nodes_serve_as_one_worker_and_end_together(groups: dict[str, Group]) -> None:
    prefill, decode = groups["prefill"], groups["decode"]
    for group in groups.values():
        assert _status(f"{group.probes}/live") == _status(f"{group.probes}/ready") == 200

    async with connected([prefill.leader, decode.leader]) as pair:
        sequence = await pair.start(max_tokens=12)
        await pair.finished(sequence)
        (finish,) = sequence.finishes
        assert finish.reason == common_pb2.FINISH_REASON_LENGTH
        assert len(sequence.text) > 12

        # All pods of a group get SIGTERM at once: a follower stays for what its leader still has.
        prefill.follower.process.send_signal(signal.SIGTERM)
        prefill.follower.wait_for("draining: waiting for the leader", time.monotonic() + 20)
        again = await pair.start(max_tokens=12)
        await pair.finished(again)
        assert again.text == sequence.text
        assert prefill.follower.process.poll() is None

    assert prefill.leader.end() == 0
    assert prefill.follower.process.wait(END_SECONDS) == 0
    assert prefill.follower.said("the leader has closed its engine")

    # Here the leader is lost, without a word.
    decode.leader.process.kill()
    assert decode.follower.process.wait(END_SECONDS) == 1
    assert decode.follower.said("the engine died")
