"""SGLang's own way to serve with prefill and decode apart: an HTTP server for each phase, and its
gateway before them. Both servers are given what Tandem's workers give SGLang, of the same options.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.cli import processes
from tandem.cli.stack import tail
from tandem.engine.base import Role
from tandem.free_ports import FreePorts
from tandem_sglang import arguments
from tandem_sglang.options import Options
from tandem_sglang.ports import Ports

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "build" / "sglang-gateway"
SET_UP = "make full && scripts/unpack_wheels.sh sglang-gateway"
HOST = "127.0.0.1"
PHASES = (Role.PREFILL, Role.DECODE)
STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Servers:
    """Where SGLang's gateway answers, and the pids of both servers and, as its router, of it."""

    address: str
    processes: Mapping[str, int]


class Program:
    """A process that leads a session of its own, with a log."""

    def __init__(
        self,
        name: str,
        command: list[str],
        folder: Path,
        env: Mapping[str, str],
        python: Path = Path(sys.executable),
    ) -> None:
        self.name, self.log = name, folder / f"server-{name}.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [python, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**env, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self.identity = processes.identify(self.process.pid)

    def wait_for(self, url: str, seconds: float) -> None:
        """Until `url` is answered with 200. Raises RuntimeError, with the log's end."""
        due = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < due:
            with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.5)
        raise RuntimeError(f"{self.name} does not answer at {url}\n{tail(self.log)}")

    def end(self) -> None:
        if self.identity is not None:
            processes.end([self.identity], grace_seconds=STOP_SECONDS)
        self.process.wait(processes.KILL_SECONDS)


def flags(values: Mapping[str, Any]) -> list[str]:
    """Keyword arguments of SGLang's Engine as flags of its server. What is off is its default."""
    found: list[str] = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            found.append(flag)
        elif value is not False:
            found += [flag, str(value)]
    return found


def environment(options: Options) -> dict[str, str]:
    """That of Tandem's workers, with what the gateway and the HTTP servers import beside."""
    paths = [str(PACKAGES), os.getenv("PYTHONPATH", "")]
    return {
        **os.environ,
        **arguments.environment(options, host=HOST, device=options.device),
        "UCX_NET_DEVICES": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def server_command(
    role: Role,
    options: Options,
    *,
    model: Path,
    port: int,
    bootstrap_port: int,
    max_sequences: int,
) -> list[str]:
    """SGLang's HTTP server of one phase: a module and its flags."""
    values = arguments.server_args(
        options,
        role=role,
        model_path=model,
        max_sequences=max_sequences,
        host=HOST,
        device=options.device,
        ports=Ports(bootstrap=bootstrap_port),
        processors=False,
    )
    served = ["--port", str(port), "--served-model-name", model.name]
    return ["sglang.launch_server", *flags(values), *served]


def gateway_command(port: int, metrics: int, servers: Mapping[Role, int], boot: int) -> list[str]:
    prefill, decode = (f"http://{HOST}:{servers[role]}" for role in PHASES)
    return [
        "sglang_router.launch_router",
        *("--pd-disaggregation", "--policy", "round_robin", "--log-level", "warn"),
        *("--host", HOST, "--port", str(port)),
        *("--prometheus-host", HOST, "--prometheus-port", str(metrics)),
        *("--prefill", prefill, str(boot), "--decode", decode),
    ]


def check_installed() -> None:
    """Raises SystemExit, saying what to run, where SGLang's gateway is not there."""
    if not PACKAGES.is_dir():
        raise SystemExit(f"SGLang's gateway is not there: run {SET_UP}")


@contextmanager
def running(
    options: Options, *, model: Path, max_sequences: int, folder: Path, seconds: float
) -> Iterator[Servers]:
    """Both servers and the gateway, ready for requests. Raises RuntimeError. `options` name their
    device.
    """
    with ExitStack() as held:
        free = FreePorts(held)
        prefill, decode, boot, port, metrics = (free.port() for _ in range(5))
    ports = {Role.PREFILL: prefill, Role.DECODE: decode}
    env = environment(options)
    started: list[Program] = []
    try:
        for role in PHASES:
            command = server_command(
                role,
                options,
                model=model,
                port=ports[role],
                bootstrap_port=boot,
                max_sequences=max_sequences,
            )
            started.append(Program(role.value, command, folder, env))
        for role, program in zip(PHASES, started, strict=True):
            program.wait_for(f"http://{HOST}:{ports[role]}/health", seconds)
        gateway = Program("router", gateway_command(port, metrics, ports, boot), folder, env)
        started.append(gateway)
        gateway.wait_for(f"http://{HOST}:{port}/readiness", seconds)
        pids = {program.name: program.process.pid for program in started}
        yield Servers(f"{HOST}:{port}", pids)
    finally:
        for program in reversed(started):
            program.end()
