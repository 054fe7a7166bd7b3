"""`tandem doctor`: checks this machine, and writes a report of it to be sent along."""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import msgspec

from tandem import config
from tandem.cli import log_files, options, status
from tandem.cli.client import ApiError, Client
from tandem.cli.commands import Command
from tandem.cli.console import Console
from tandem.cli.status import READY, ComponentStatus, StackStatus
from tandem.engine.base import EngineUnit, UnitState
from tandem.errors import StartError

Level = Literal["ok", "note", "bad"]
GIB: Final = 2**30
LEAST_MEMORY = 4 * GIB
LEAST_SHARED_MEMORY = GIB
LEAST_FILES = 4096
LEAST_DISK = GIB
GPU_SECONDS = 20.0
UNITS_SECONDS = 2.0
LOG_LINES = 200
RDMA = Path("/sys/class/infiniband")
PEER_MEMORY = Path("/sys/module/nvidia_peermem")
CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")
PACKAGES = (
    "torch",
    "sglang",
    "vllm",
    "nixl",
    "grpcio",
    "protobuf",
    "tokenizers",
    "transformers",
    "kubernetes",
    "prometheus-client",
)
"""Beside all whose names begin with "tandem"."""
_OF_ENGINES = re.compile(r"(TANDEM|UCX|NIXL|NCCL|SGLANG|VLLM|CUDA|MC|HF)_|.*_PROXY", re.IGNORECASE)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_USER = re.compile(r"//[^/@]*@")
"""The user and the password in a proxy's address."""
_LOCAL = ("127.0.0.1", "localhost")


class Finding(msgspec.Struct, frozen=True):
    """The outcome of one check of the machine or the stack."""

    about: str
    level: Level
    """ok; note: worth knowing; bad: Tandem will not work, or not well."""
    said: str
    advice: str = ""
    """What to do."""


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` and `--to` write."""

    findings: list[Finding]
    versions: dict[str, str]
    """The version of each installed package that matters here, by its name."""
    environment: dict[str, str]
    """Variables that Tandem, the engines and their transports read; what is secret is hidden."""
    stack: StackStatus | None
    logs: dict[str, list[str]] = {}
    """The last lines of each component, with --with-logs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--to", type=Path, metavar="FILE", help="Write the report to this file too, as JSON.")
    add(
        "--with-logs",
        action="store_true",
        help=f"Put the last {LOG_LINES} lines of each component's log into the report. Tandem logs"
        " no prompt and no answer; an engine's own lines may hold anything.",
    )
    options.add_run_dir(parser)


def doctor(arguments: argparse.Namespace, console: Console) -> int:
    """Returns 1 where something is bad. Raises StartError where the file cannot be written."""
    report = examine(arguments.run_dir, with_logs=arguments.with_logs)
    written = msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
    if not console.result(report):
        _show(report, console)
    if arguments.to is not None:
        try:
            arguments.to.write_text(written, encoding="utf-8")
        except OSError as error:
            raise StartError(f"cannot write {arguments.to}: {error.strerror}") from error
        console.line(f"the report is in {arguments.to}: attach it when you report a problem")
    return 1 if any(each.level == "bad" for each in report.findings) else 0


def examine(run_dir: Path, *, with_logs: bool = False) -> DoctorReport:
    """Look at this machine, and at the stack of a folder. Changes nothing."""
    stack = None
    try:
        stack = status.of_stack(run_dir)
        stacks = list(_stack(stack))
    except StartError as error:
        stacks = [Finding("stack", "bad", str(error))]
    gpus = _gpus()
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _memory,
        _files,
        lambda: _disk(run_dir),
        lambda: _engines(gpus),
        lambda: _transports(gpus),
        _proxies,
        lambda: _port(stack),
    )
    findings = [finding for check in checks for finding in check()] + stacks
    logs = {}
    if with_logs:
        for log in sorted(run_dir.glob("*.log")):
            try:
                logs[log.stem] = log_files.last_lines(log, LOG_LINES)
            except OSError as error:
                logs[log.stem] = [f"cannot be read: {error.strerror}"]
    return DoctorReport(
        findings=findings, versions=versions(), environment=environment(), stack=stack, logs=logs
    )


def versions() -> dict[str, str]:
    """Versions of the installed distributions of Tandem, of engines, and of their libraries."""
    found = {}
    for each in metadata.distributions():
        name = (each.metadata["Name"] or "").lower()
        if name in PACKAGES or name.startswith("tandem-"):
            found[name] = each.version
    return dict(sorted(found.items()))


def environment() -> dict[str, str]:
    """Variables that Tandem, the engines and their transports read. A value is hidden where the
    variable or the value names a secret, and where the value is a mapping: settings of an
    operator's code may be anything.
    """
    return {
        name: "(hidden)"
        if _SECRET.search(f"{name}={value}") or "{" in value
        else _USER.sub("//(hidden)@", value)
        for name, value in sorted(config.environment().items())
        if _OF_ENGINES.match(name)
    }


def _show(report: DoctorReport, console: Console) -> None:
    marks = {"ok": console.good("ok"), "note": console.dim("--"), "bad": console.bad("!!")}
    width = max(len(each.about) for each in report.findings)
    for each in report.findings:
        console.line(f"{marks[each.level]}  {each.about:{width}}  {each.said}")
        if each.advice:
            console.line(f"    {'':{width}}  {each.advice}")
    told = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    console.line(console.dim(f"    {'versions':{width}}  {told}"))


# --- the machine ----------------------------------------------------------------------------------


def _python() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    said = f"Python {platform.python_version()}, {platform.platform()}, {cores} cores"
    yield Finding("system", "ok", said)


def _memory() -> Iterator[Finding]:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    most = pages * size
    limit = CGROUP_MEMORY.read_text().strip() if CGROUP_MEMORY.is_file() else "max"
    if limit.isdecimal():
        most = min(most, int(limit))
    if most < LEAST_MEMORY:
        advice = f"give this machine or container {LEAST_MEMORY // GIB} GiB; --engine sim asks less"
        yield Finding("memory", "bad", _size(most), advice)
    else:
        yield Finding("memory", "ok", _size(most))
    shared = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0
    if shared < LEAST_SHARED_MEMORY:
        yield Finding(
            "shared memory",
            "bad",
            f"/dev/shm has {_size(shared)}",
            "engines' processes and UCX exchange data there: docker run --shm-size 8g; the chart"
            " sets it",
        )
    else:
        yield Finding("shared memory", "ok", f"/dev/shm has {_size(shared)}")


def _files() -> Iterator[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < LEAST_FILES:
        advice = (
            f"each client takes one: raise the hard limit (ulimit -Hn) to {LEAST_FILES} or more"
        )
        yield Finding("open files", "bad", f"at most {hard}", advice)


def _disk(run_dir: Path) -> Iterator[Finding]:
    folder = next(each for each in (run_dir.resolve(), *run_dir.resolve().parents) if each.exists())
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        advice = "name another with --run-dir"
        yield Finding("run folder", "bad", f"{folder} cannot be written", advice)
    elif free < LEAST_DISK:
        yield Finding("run folder", "bad", f"{folder} has {_size(free)} left for logs")


def _size(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


# --- engines and transports -----------------------------------------------------------------------


def _gpus() -> list[str]:
    """NVIDIA's GPUs: name, memory, driver."""
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            asked, capture_output=True, text=True, timeout=GPU_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.strip().splitlines()


def _engines(gpus: list[str]) -> Iterator[Finding]:
    found = versions()
    for gpu in gpus:
        yield Finding("GPU", "ok", gpu)
    if not gpus:
        advice = "the simulated engine needs none; a checkout's `make full` runs SGLang on CPUs"
        yield Finding("GPU", "note", "nvidia-smi tells of none", advice)
    for engine in ("sglang", "vllm"):
        if engine not in found:
            continue
        kit = f"tandem-{engine}"
        if kit not in found:
            advice = f"pip install 'tandem-serving[{engine}]'"
            yield Finding("engine", "bad", f"{engine} {found[engine]} without {kit}", advice)
            continue
        needs = [each for each in metadata.requires(kit) or () if each.startswith(engine)]
        said = f"{engine} {found[engine]}; {kit} takes {', '.join(needs) or 'any'}"
        yield Finding("engine", "ok", said)
    if not found.keys() & {"sglang", "vllm"}:
        level: Level = "bad" if gpus else "note"
        advice = "pip install 'tandem-serving[sglang]' brings SGLang" if gpus else ""
        yield Finding("engine", level, "only the simulated engine is installed", advice)


def _transports(gpus: list[str]) -> Iterator[Finding]:
    ports = sorted(RDMA.glob("*/ports/*"))
    for port in ports:
        device, state = port.parent.parent.name, _read(port / "state")
        said = f"{device} port {port.name}: {state}, {_read(port / 'rate')}"
        said += f", {_read(port / 'link_layer')}"
        level: Level = "ok" if "ACTIVE" in state else "note"
        yield Finding("RDMA", level, said)
    if not ports:
        advice = "between machines KV goes over TCP, which is slow: docs/kubernetes/rdma.md"
        yield Finding("RDMA", "note", "no device", advice if gpus else "")
        return
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked != resource.RLIM_INFINITY:
        advice = "memory for RDMA must stay locked: ulimit -l unlimited, or capability IPC_LOCK"
        yield Finding("RDMA", "bad", f"at most {_size(locked)} may be locked", advice)
    if gpus and not PEER_MEMORY.exists():
        advice = "GPUDirect RDMA needs the module or DMA-BUF: modprobe nvidia_peermem"
        yield Finding("RDMA", "note", "the kernel module nvidia_peermem is not loaded", advice)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"


# --- the network of this machine, and the stack ---------------------------------------------------


def _proxies() -> Iterator[Finding]:
    given = {name.lower(): value for name, value in config.environment().items()}
    proxies = [name for name in ("http_proxy", "https_proxy", "all_proxy") if given.get(name)]
    spared = re.split(r"[,\s]+", given.get("no_proxy", ""))
    if proxies and "*" not in spared and not set(_LOCAL) & set(spared):
        yield Finding(
            "proxy",
            "bad",
            f"{', '.join(proxies)} is set, and no_proxy does not name this machine",
            f"clients would ask the proxy for the stack: export no_proxy={','.join(_LOCAL)}",
        )


def _port(stack: StackStatus | None) -> Iterator[Finding]:
    port = options.DEFAULT_PORT
    if stack is not None and stack.url.endswith(f":{port}"):
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            said = f"127.0.0.1:{port} cannot be listened on: {error.strerror}"
            yield Finding("port", "note", said, "tandem up --port 0 takes a free one")


def _stack(stack: StackStatus) -> Iterator[Finding]:
    if not stack.components:
        yield Finding("stack", "note", "nothing is up from this folder")
    for each in stack.components:
        if each.state != READY:
            advice = f"tandem logs {each.component}"
            yield Finding("stack", "bad", f"{each.component}: {each.state}", advice)
        yield from _units(each)
    if stack.ready:
        said = f"{len(stack.components)} components are ready, at {stack.url}"
        yield Finding("stack", "ok", said)


def _units(component: ComponentStatus) -> Iterator[Finding]:
    """Units of a worker's engine. Other components have no such page."""
    try:
        asked = Client(component.metrics, timeout_seconds=UNITS_SECONDS).get("/debug/units")
        units = msgspec.convert(asked, list[EngineUnit])
    except (ApiError, msgspec.ValidationError):
        return
    states = Counter(unit.state for unit in units)
    for unit in units:
        if unit.state is UnitState.LACKING:
            said = f"{component.component}: {unit.name} is lacking, for want of {unit.lacks}"
            yield Finding("engine unit", "note", said, unit.without)
    if units:
        told = ", ".join(f"{count} {state.value}" for state, count in states.items())
        names = ", ".join(unit.name for unit in units if unit.state is UnitState.KEPT)
        yield Finding("engine units", "ok", f"{component.component}: {told}: {names}")


COMMAND = Command(add_arguments, doctor, example="tandem doctor --to report.json")
