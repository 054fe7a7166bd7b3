"""Which processes make a stack on this machine, and with which flags. No process is started
here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tandem.cli import prometheus
from tandem.cli.prometheus import PROMETHEUS
from tandem.errors import StartError
from tandem.free_ports import LOOPBACK, FreePorts
from tandem.stack_file import PERMISSIONS, SECTIONS, StackFile

COMPONENTS = tuple(SECTIONS)


@dataclass(slots=True, frozen=True)
class GivenFile:
    """A file of the stack's settings, and what it says."""

    path: Path
    content: StackFile


@dataclass(slots=True, frozen=True, kw_only=True)
class StackOptions:
    """The processes to start, and how. A port of 0 becomes any free one."""

    model_path: Path
    further_models: tuple[Path, ...] = ()
    """Folders of models that have as many workers of their own, behind the same router."""
    engine: str = "sglang"
    port: int = 0
    prefill: int = 1
    decode: int = 1
    aggregated: int = 0
    """Workers that serve both phases, beside the pairs or alone."""
    routers: int = 1
    token_processes: int = 1
    """Each decode worker has so many."""
    hook_prefill: str = ""
    hook_decode: str = ""
    test_logits_processor: bool = False
    engine_options: tuple[str, ...] = ()
    """key=value, for the engine of every worker."""
    file: GivenFile | None = None
    """What else the components are told."""
    certificates: Path | None = None
    """A folder of `tandem certificates`, for mutual TLS between the components."""
    monitoring: Path | None = None
    """The folder of a Prometheus of the stack's own; None: there is none."""
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """More flags by component ("router") or by one process of it ("decode_worker-1")."""


@dataclass(slots=True, frozen=True)
class Launch:
    """One process, and what it runs: `program`, or else the component (launching.command)."""

    name: str
    component: str
    address: str
    metrics: str
    """Where GET /metrics, /live and /ready are answered, "host:port"."""
    flags: tuple[str, ...]
    further: tuple[str, ...] = ()
    """Where a decode worker's token processes from the second on are reached."""
    program: str = ""


def plan(options: StackOptions, *, held: ExitStack) -> list[Launch]:
    """The processes in the order to start them; stop them in reverse: frontend, routers, workers
    with Prometheus.

    `held` keeps their ports, until it is closed, from other stacks that are planned meanwhile.
    Raises StartError where too few are free, or what is asked for cannot be.
    """
    models = (options.model_path, *options.further_models)
    counts = (
        ("prefill_worker", options.prefill),
        ("decode_worker", options.decode),
        ("aggregated_worker", options.aggregated),
    )
    workers = [
        (f"{component}-{number * count + index}", model)
        for component, count in counts
        for number, model in enumerate(models)
        for index in range(count)
    ]
    free = FreePorts(held)
    if options.port:
        _hold(free, options.port)
    launches = [_worker(options, name, model, free) for name, model in workers]
    names = ["router", *(f"router-{number}" for number in range(1, options.routers))]
    routers = [
        _router(options, name, launches, address=free.address(), metrics=free.address())
        for name in names
    ]
    address = f"{LOOPBACK}:{options.port}" if options.port else free.address()
    frontend = _frontend(options, routers, address=address, metrics=free.address())
    return [*_prometheus(options, free), *launches, *routers, frontend]


def _hold(free: FreePorts, port: int) -> None:
    """Raises StartError where the frontend could not listen on that port."""
    try:
        free.hold(LOOPBACK, port)
    except OSError as error:
        raise StartError(
            f"--port {port} cannot be had ({error.strerror}): name another, or --port 0 for any"
            " free one"
        ) from error


def _worker(options: StackOptions, name: str, model: Path, free: FreePorts) -> Launch:
    component = name.partition("-")[0]
    # A process listens at the first one's port plus its number (docs/engines/sglang.md).
    numbers = range(2, options.token_processes + 1) if component == "decode_worker" else ()
    port = free.port((LOOPBACK, number) for number in (0, *numbers))
    address, metrics = f"{LOOPBACK}:{port}", free.address()
    hook = options.hook_prefill if component == "prefill_worker" else options.hook_decode
    if component == "aggregated_worker" and options.hook_prefill != options.hook_decode:
        raise StartError(
            "an aggregated worker has one hook for both phases: name the same for prefill and"
            " decode, or set a chain whose entries say their phases (docs/hooks/README.md)"
        )
    flags = [
        f"--listen={address}",
        f"--metrics-listen={metrics}",
        f"--name={name}",
        f"--engine={options.engine}",
        f"--model-path={model}",
    ]
    if options.engine_options:
        flags.append(f"--engine-options={','.join(options.engine_options)}")
    if hook:
        # The file may name a chain, and a worker has the one or the other.
        flags += [f"--hook={hook}", "--hooks={}"]
    if options.test_logits_processor:
        flags.append("--test-logits-processor")
    if numbers:
        flags.append(f"--token-processes={options.token_processes}")
    flags += (*_tls(options, component), *_file(options))
    further = tuple(f"{LOOPBACK}:{port + number}" for number in numbers)
    more = _more(options, component, name)
    return Launch(name, component, address, metrics, (*flags, *more), further)


def _router(
    options: StackOptions, name: str, workers: list[Launch], *, address: str, metrics: str
) -> Launch:
    def addresses(component: str) -> str:
        found = (each for each in workers if each.component == component)
        return ",".join(address for each in found for address in (each.address, *each.further))

    flags = (
        f"--listen={address}",
        f"--metrics-listen={metrics}",
        f"--prefill={addresses('prefill_worker')}",
        f"--decode={addresses('decode_worker')}",
        f"--workers={addresses('aggregated_worker')}",
        *_tls(options, "router"),
        *_file(options),
    )
    more = (*_permissions(options), *_more(options, "router"))
    return Launch(name, "router", address, metrics, (*flags, *more))


def _permissions(options: StackOptions) -> Iterator[str]:
    """The frontend's flags that are the router's too."""
    names = {"--" + name.replace("_", "-") for name in PERMISSIONS}
    for flag in _more(options, "frontend"):
        if flag.partition("=")[0] in names:
            yield flag


def _frontend(
    options: StackOptions, routers: list[Launch], *, address: str, metrics: str
) -> Launch:
    flags = (
        f"--listen={address}",
        f"--metrics-listen={metrics}",
        f"--router={','.join(each.address for each in routers)}",
        f"--model-path={options.model_path}",
        *_models(options),
        *_tls(options, "frontend"),
        *_file(options),
    )
    return Launch("frontend", "frontend", address, metrics, (*flags, *_more(options, "frontend")))


def _prometheus(options: StackOptions, free: FreePorts) -> Iterator[Launch]:
    """Raises StartError where there is to be a Prometheus, and none is installed."""
    if options.monitoring:
        program, address = prometheus.program(), free.address()
        flags = prometheus.flags(options.monitoring, address)
        yield Launch(PROMETHEUS, PROMETHEUS, address, address, flags, program=program)


def _models(options: StackOptions) -> tuple[str, ...]:
    """The frontend's flag for further models."""
    each = ",".join(f"{path.resolve().name}={path}" for path in options.further_models)
    return (f"--models={each}",) if each else ()


def _tls(options: StackOptions, component: str) -> tuple[str, ...]:
    folder = options.certificates
    if folder is None:
        return ()
    role = "worker" if component == "aggregated_worker" else component.removesuffix("_worker")
    return (
        f"--tls-cert={folder / role}.crt",
        f"--tls-key={folder / role}.key",
        f"--tls-ca={folder / 'ca.crt'}",
    )


def _file(options: StackOptions) -> tuple[str, ...]:
    return (f"--stack={options.file.path}",) if options.file else ()


def _more(options: StackOptions, *names: str) -> tuple[str, ...]:
    return tuple(flag for name in names for flag in options.flags.get(name, ()))
