"""Every gRPC port of a stack keeps to HTTP/2 as h2spec reads it, but for cases that are listed."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import go_programs
import h2spec
import pytest
from stacks import SIM_READY_SECONDS

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.free_ports import FreePorts

PORTS = ("router", "prefill_worker-0", "decode_worker-0", "kv")


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return go_programs.binary("h2spec")
    except go_programs.UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def outcomes(
    program: Path, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, h2spec.Outcome]:
    """Of each port of one stack, all at once: a run mostly waits."""
    with ExitStack() as held:
        kv_port = FreePorts(held).port([("127.0.0.1", 0)])
        options = StackOptions(
            model_path=model_path, engine="sim", engine_options=(f"kv_port={kv_port}",)
        )
        with Stack(options, run_dir=tmp_path_factory.mktemp("stack")) as stack:
            stack.wait_ready(timeout_seconds=SIM_READY_SECONDS)
            addresses = {name: each.address for name, each in stack.components.items()}
            addresses["kv"] = f"127.0.0.1:{kv_port}"
            reports = tmp_path_factory.mktemp("reports")
            with ThreadPoolExecutor(len(PORTS)) as threads:
                running = {
                    port: threads.submit(h2spec.run, program, addresses[port], reports / port)
                    for port in PORTS
                }
            stack.check_running()
            return {port: each.result() for port, each in running.items()}


@pytest.mark.promise("S5-424")
@pytest.mark.parametrize("port", PORTS)
def test_what_fails_of_h2spec_is_what_is_listed(
    port: str, outcomes: Mapping[str, h2spec.Outcome]
) -> None:
    outcome, listed = outcomes[port], h2spec.expected()
    print(f"h2spec, strict, {port}: {outcome}")
    assert {case: wrong for case, wrong in outcome.failed.items() if case not in listed} == {}
    assert [case for case in listed if case not in outcome.failed] == []
    assert outcome.passed > 100


def test_each_listed_failure_has_a_reason() -> None:
    assert [case for case, reason in h2spec.expected().items() if len(reason.split()) < 4] == []


def test_a_report_is_read_by_case() -> None:
    outcome = h2spec.read(
        '<testsuites><testsuite><testcase package="http2/6.7" classname="Sends a PING"/>'
        '<testcase package="http2/6.8" classname="Sends a GOAWAY"><error>A frame</error></testcase>'
        '<testcase package="hpack/4.2" classname="Resizes"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    assert (outcome.passed, outcome.skipped) == (1, 1)
    assert outcome.failed == {"http2/6.8: Sends a GOAWAY": "A frame"}
