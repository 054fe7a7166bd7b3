"""vLLM's own way to serve with prefill and decode apart: `vllm serve` for each phase, and vLLM's
router before them. Both servers are given what Tandem's workers give vLLM, of the same options, but
for what makes Tandem's its own: the connector, the processors, and steps that wait for tokens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sglang_servers import HOST, PHASES, Program, Servers

from tandem.engine.base import EngineSettings, Role
from tandem.free_ports import FreePorts
from tandem.logits.registry import Registry
from tandem_vllm import arguments
from tandem_vllm import options as engine_options

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
PACKAGES = ROOT / "build" / "vllm-router"
SET_UP = "make full vllm && scripts/unpack_wheels.sh vllm-router"
OURS = {"additional_config", "async_scheduling", "logits_processors", "skip_tokenizer_init"}
"""Arguments that no server is given."""


def server_values(
    role: Role, options: Sequence[str], *, model: Path, max_sequences: int
) -> dict[str, Any]:
    """Arguments of vLLM's engine in one phase, by name."""
    settings = EngineSettings(
        model_path=model,
        model_name=model.name,
        max_sequences=max_sequences,
        host=HOST,
        options={},
        registry=Registry(),
    )
    parsed = engine_options.parse(dict(each.split("=", 1) for each in options))
    values = arguments.engine_args(parsed, settings, role, cpu=True, notes="")
    transfer = values["kv_transfer_config"] | {"kv_connector": "NixlConnector"}
    del transfer["kv_connector_module_path"]
    kept = {name: value for name, value in values.items() if name not in OURS}
    return kept | {"kv_transfer_config": transfer}


def flags(values: Mapping[str, Any]) -> list[str]:
    """Arguments of vLLM's engine as flags of its server."""
    found: list[str] = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            said = json.dumps(value) if isinstance(value, dict) else str(value)
            found += [f"--{flag}", said]
    return found


def environment(role: Role, side_channel_port: int) -> dict[str, str]:
    """That of Tandem's workers, with vLLM's router beside."""
    runner = engine_options.ModelRunner.V1
    paths = [str(PACKAGES), os.getenv("PYTHONPATH", "")]
    return {
        **os.environ,
        **arguments.environment(host=HOST, cpu=True),
        **arguments.own_variables(role, runner, host=HOST, side_channel_port=side_channel_port),
        "UCX_NET_DEVICES": "lo",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def router_command(port: int, metrics: int, servers: Mapping[Role, int]) -> list[str]:
    prefill, decode = (f"http://{HOST}:{servers[role]}" for role in PHASES)
    return [
        "vllm_router.launch_router",
        *("--vllm-pd-disaggregation", "--kv-connector", "nixl", "--policy", "round_robin"),
        *("--host", HOST, "--port", str(port), "--log-level", "warning"),
        *("--prometheus-host", HOST, "--prometheus-port", str(metrics)),
        *("--prefill", prefill, "--decode", decode),
    ]


def check_installed() -> None:
    """Raises SystemExit, saying what to run, where vLLM or its router is not there."""
    if not PYTHON.exists() or not PACKAGES.is_dir():
        raise SystemExit(f"vLLM or its router is not there: run {SET_UP}")


@contextmanager
def running(
    options: Sequence[str], *, model: Path, max_sequences: int, folder: Path, seconds: float
) -> Iterator[Servers]:
    """Both servers and the router, ready for requests. Raises RuntimeError."""
    with ExitStack() as held:
        free = FreePorts(held)
        ports = {role: free.port() for role in PHASES}
        channels = {role: free.port() for role in PHASES}
        port, metrics = free.port(), free.port()
    started: list[Program] = []
    try:
        for role in PHASES:
            values = server_values(role, options, model=model, max_sequences=max_sequences)
            served = ["--host", HOST, "--port", str(ports[role]), "--served-model-name", model.name]
            command = ["vllm.entrypoints.openai.api_server", *flags(values), *served]
            env = environment(role, channels[role])
            started.append(Program(role.value, command, folder, env, python=PYTHON))
        for role, program in zip(PHASES, started, strict=True):
            program.wait_for(f"http://{HOST}:{ports[role]}/health", seconds)
        env = environment(Role.DECODE, 0)
        router = Program("router", router_command(port, metrics, ports), folder, env, python=PYTHON)
        started.append(router)
        router.wait_for(f"http://{HOST}:{port}/health", seconds)
        pids = {program.name: program.process.pid for program in started}
        yield Servers(f"{HOST}:{port}", pids)
    finally:
        for program in reversed(started):
            program.end()
