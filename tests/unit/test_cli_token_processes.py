"""A stack's decode workers with several token processes: which ports they get, and who is told."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tandem.cli.plan import Launch, StackOptions, plan


def flags(launch: Launch) -> dict[str, str]:
    return dict(flag.split("=", 1) for flag in launch.flags if "=" in flag)


@pytest.mark.promise("S5-452")
def test_routers_are_told_of_each_token_process_at_a_port_that_is_free() -> None:
    options = StackOptions(model_path=Path("m"), prefill=2, decode=2, token_processes=3)
    with ExitStack() as held:
        launches = plan(options, held=held)
        router = flags(next(each for each in launches if each.name == "router"))
        decode = [each for each in launches if each.component == "decode_worker"]
        listed = router["--decode"].split(",")
        for each in decode:
            port = int(each.address.rpartition(":")[2])
            assert each.further == (f"127.0.0.1:{port + 2}", f"127.0.0.1:{port + 3}")
            assert flags(each)["--token-processes"] == "3"
        assert listed == [address for each in decode for address in (each.address, *each.further)]
        others = {launch.address for launch in launches} | {each.metrics for each in launches}
        assert len(others | set(listed)) == 2 * len(launches) + 4, "no port is given twice"
        for address in listed:
            with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
                stranger.bind(("127.0.0.1", int(address.rpartition(":")[2])))
    assert not any("--token-processes" in flags(each) for each in launches if each not in decode)
    with ExitStack() as held:
        one = plan(StackOptions(model_path=Path("m")), held=held)
    assert not any("--token-processes" in flags(each) for each in one)
