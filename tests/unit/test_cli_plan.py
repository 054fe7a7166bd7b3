"""Which processes a stack has, and what the command line accepts."""

from __future__ import annotations

import argparse
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from second_model import second_model

from tandem.cli import options
from tandem.cli.plan import Launch, StackOptions, plan
from tandem.errors import ConfigError, StartError
from tandem.free_ports import FreePorts

MODELS = tuple(enumerate(("m", "/a", "/b")))


def planned(options: StackOptions) -> list[Launch]:
    with ExitStack() as held:
        return plan(options, held=held)


def flags(launch: Launch) -> dict[str, str]:
    return {flag.partition("=")[0]: flag.partition("=")[2] for flag in launch.flags}


def test_every_process_gets_an_address_of_its_own_and_the_router_knows_the_workers() -> None:
    launches = planned(StackOptions(model_path=Path("m"), engine="sim", prefill=2, decode=3))
    by_name = {launch.name: launch for launch in launches}
    assert list(by_name) == [
        *("prefill_worker-0", "prefill_worker-1"),
        *("decode_worker-0", "decode_worker-1", "decode_worker-2"),
        *("router", "frontend"),
    ]
    listens = [
        address
        for launch in launches
        for flag, address in flags(launch).items()
        if flag in ("--listen", "--metrics-listen")
    ]
    assert len(set(listens)) == len(listens) == 2 * len(launches)
    assert all(launch.metrics != launch.address for launch in launches)
    assert {launch.metrics for launch in launches} <= set(listens)
    router = flags(by_name["router"])
    assert router["--prefill"].split(",") == [launches[0].address, launches[1].address]
    assert len(router["--decode"].split(",")) == 3
    assert flags(by_name["frontend"])["--router"] == by_name["router"].address


def test_each_of_several_routers_knows_the_workers_and_the_frontend_knows_the_routers() -> None:
    launches = planned(StackOptions(model_path=Path("m"), engine="sim", prefill=2, routers=3))
    routers = [launch for launch in launches if launch.component == "router"]
    assert [each.name for each in routers] == ["router", "router-1", "router-2"]
    assert len({address for each in routers for address in (each.address, each.metrics)}) == 6
    for each in routers:
        assert flags(each)["--prefill"].split(",") == [each.address for each in launches[:2]]
    known = flags(launches[-1])["--router"].split(",")
    assert known == [each.address for each in routers]


def test_each_further_model_has_workers_of_its_own_and_the_frontend_has_its_files() -> None:
    launches = planned(
        StackOptions(
            model_path=Path("m"), further_models=(Path("/a"), Path("/b")), engine="sim", prefill=2
        )
    )
    models = {
        launch.name: [flag for flag in launch.flags if flag.startswith("--model")]
        for launch in launches
    }
    expected = {
        **{f"prefill_worker-{2 * at + each}": path for at, path in MODELS for each in range(2)},
        **{f"decode_worker-{at}": path for at, path in MODELS},
    }
    assert models == {
        **{name: [f"--model-path={path}"] for name, path in expected.items()},
        "router": [],
        "frontend": ["--model-path=m", "--models=a=/a,b=/b"],
    }


def test_further_models_have_names_of_their_own(model_path: Path, tmp_path: Path) -> None:
    other = second_model(model_path, tmp_path / "other")
    parser = argparse.ArgumentParser()
    options.add_stack(parser)
    asked = ["--model-path", str(model_path), "--further-model"]
    made = options.stack_options(parser.parse_args([*asked, str(other)]))
    assert made.further_models == (other,)
    with pytest.raises(ConfigError, match="each of another name"):
        options.stack_options(parser.parse_args([*asked, str(model_path)]))


def test_no_port_is_given_that_is_taken_or_that_an_outgoing_connection_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listens = {
        launch.address for launch in planned(StackOptions(model_path=Path("m"), engine="sim"))
    }
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(ephemeral.read_text().split()[0]) if ephemeral.exists() else 32768
    assert all(int(address.rpartition(":")[2]) < first for address in listens)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr("tandem.free_ports.PORTS", range(port - 60, port + 1))
        for _ in range(20):
            given = planned(StackOptions(model_path=Path("m"), engine="sim"))
            assert not any(str(port) in each.address + each.metrics for each in given)


def test_a_port_is_its_components_alone_until_the_stack_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its component takes seconds to listen, and may be started again: two stacks that are started
    side by side must not get the same.
    """
    with ExitStack() as held:
        free = FreePorts(held)
        ports = [free.port() for _ in range(8)]
    monkeypatch.setattr("tandem.free_ports.PORTS", ports)
    options = StackOptions(model_path=Path("m"), engine="sim")
    with ExitStack() as held:
        launches = plan(options, held=held)
        assert len({each.address for each in launches} | {each.metrics for each in launches}) == 8
        with ExitStack() as others, pytest.raises(StartError):
            plan(options, held=others)
        for _ in range(2):
            host, _, port = launches[0].address.rpartition(":")
            socket.create_server((host, int(port))).close()
    assert planned(options), "they are free again"


def test_each_phase_gets_its_own_hook_and_a_fixed_port_is_kept() -> None:
    launches = planned(
        StackOptions(
            model_path=Path("m"),
            port=8123,
            hook_prefill="a:A",
            hook_decode="b:B",
            test_logits_processor=True,
            engine_options=("step_ms=10", "seed=1"),
        )
    )
    prefill, decode, router, frontend = map(flags, launches)
    assert (prefill["--hook"], decode["--hook"]) == ("a:A", "b:B")
    assert all("--test-logits-processor" in worker for worker in (prefill, decode))
    assert decode["--engine-options"] == "step_ms=10,seed=1"
    assert frontend["--listen"] == "127.0.0.1:8123"
    assert "--hook" not in router


def test_more_flags_reach_a_kind_of_component_or_one_process_of_it() -> None:
    launches = planned(
        StackOptions(
            model_path=Path("m"),
            decode=2,
            flags={"decode_worker": ("--a",), "decode_worker-1": ("--b",), "frontend": ("--c",)},
        )
    )
    more = {launch.name: set(launch.flags) & {"--a", "--b", "--c"} for launch in launches}
    assert more == {
        "prefill_worker-0": set(),
        "decode_worker-0": {"--a"},
        "decode_worker-1": {"--a", "--b"},
        "router": set(),
        "frontend": {"--c"},
    }


@pytest.mark.parametrize("pair", ["step_ms", "=10", "a=1,b=2"])
def test_an_engine_option_that_is_no_pair_is_refused(pair: str) -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        options.engine_options([pair])


def test_a_folder_without_a_model_is_refused_and_the_checkout_has_one(
    tmp_path: Path, model_path: Path
) -> None:
    with pytest.raises(ConfigError, match="--model-path"):
        options.model_path(tmp_path)
    assert options.model_path(None) == model_path
