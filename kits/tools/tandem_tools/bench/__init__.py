"""`tandem bench`: load on a frontend that is up, and how fast it answered.

AIPerf sends the requests and takes the times. Here is what is asked of it, and what is made of the
records that it writes: design 0019.
"""

from __future__ import annotations

import argparse
import tempfile
from importlib import metadata
from pathlib import Path

from tandem.cli import options
from tandem.cli.client import TIMEOUT_SECONDS, ApiError, Client
from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.cli.up import stopping_on_signals
from tandem.errors import ConfigError
from tandem_tools.bench import aiperf, plot
from tandem_tools.bench.figures import BenchSlo, Figures
from tandem_tools.bench.load import BenchLoad
from tandem_tools.trace import read

CONCURRENCY = 16
REQUESTS = 200
PROMPT_TOKENS = 512
OUTPUT_TOKENS = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_frontend(parser)
    _add_load(parser)
    options.add_slo(parser)
    add = adding(parser)
    add("--plot FILE.svg", Path, help="Draw how TTFT and ITL are distributed.")


def bench(arguments: argparse.Namespace, console: Console) -> int:
    """Status 0; 1 where no request succeeded, or AIPerf failed; 130 where it was interrupted.

    Raises ConfigError for what cannot be run, ApiError where the frontend is not there, refuses the
    key, or does not serve the model.
    """
    load = _load(arguments)
    options.check_folder(arguments.plot)
    program = aiperf.program()
    key = options.api_key(arguments.api_key_env)
    model = _model(Client(arguments.url, api_key=key), arguments.model)
    target = aiperf.BenchTarget(
        url=arguments.url if "//" in arguments.url else f"http://{arguments.url}",
        model=model,
        model_path=_model_path(arguments.model_path, model),
        api_key=key,
        timeout_seconds=arguments.timeout,
    )
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder, stopping_on_signals():
        outcome = aiperf.run(program, target, load, Path(folder), console)
    slo = BenchSlo(ttft_seconds=arguments.slo_ttft, itl_seconds=arguments.slo_itl)
    figures = Figures.of(outcome.answers, slo)
    if outcome.problem:
        console.failed(outcome.problem)
    console.table(figures.rows())
    console.result({"model": model, "load": load.told(), **figures.told()})
    if arguments.plot:
        drawn = plot.svg(figures, title=f"tandem bench: {model}", parameters=_parameters(load, slo))
        arguments.plot.write_text(drawn, encoding="utf-8")
    if outcome.interrupted:
        return 130
    return 0 if figures.succeeded and not outcome.problem else 1


def _parameters(load: BenchLoad, slo: BenchSlo) -> tuple[str, ...]:
    """What a plot says of a run beside its figures."""
    return (
        *load.said(),
        slo.said(),
        f"tandem {metadata.version('tandem-tools')}",
    )


def _add_frontend(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add("--url", default=f"http://127.0.0.1:{options.DEFAULT_PORT}", help="[%(default)s]")
    add("--model", default="", help="Model to measure. [the first one that is served]")
    add("--api-key-env NAME", default="", help="Variable that holds an API key.")
    add(
        "--model-path DIR",
        Path,
        help="Folder with the model's tokenizer, which measures prompts. [that of the checkout, "
        "where it is the model that is served]",
    )
    add(
        "--timeout SECONDS",
        options.positive_number,
        default=TIMEOUT_SECONDS,
        help="Time after which a request counts as failed. [%(default)s]",
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    how = adding(parser.add_mutually_exclusive_group())
    how(
        "--concurrency N",
        options.positive,
        help=f"Closed loop: keep this many requests open all the time. [{CONCURRENCY}]",
    )
    how(
        "--rate R",
        options.positive_number,
        help="Open loop: send this many requests a second in the mean, at random times (Poisson).",
    )
    how(
        "--trace FILE",
        Path,
        help="Open loop: JSON lines of timestamp (ms), input_length and output_length (tokens), "
        "and hash_ids, where prompts have beginnings in common.",
    )
    add(
        "--requests N",
        options.positive,
        help=f"Most requests to send. [{REQUESTS}; with --seconds or --trace, as many as come]",
    )
    add(
        "--seconds S",
        options.positive_number,
        help="Send nothing new after this time, and wait for requests that are open then.",
    )
    for what, default in (("prompt", PROMPT_TOKENS), ("output", OUTPUT_TOKENS)):
        add(
            f"--{what}-tokens N",
            options.positive,
            help=f"Length of each {what}, unless a trace says it. [{default}]",
        )


def _load(arguments: argparse.Namespace) -> BenchLoad:
    """Raises ConfigError for a trace that cannot be read, or lengths beside one."""
    requests, seconds = arguments.requests, arguments.seconds
    if arguments.trace:
        if arguments.prompt_tokens or arguments.output_tokens:
            raise ConfigError("--trace has lengths of its own: leave the others out")
        return BenchLoad(trace=read(arguments.trace, requests=requests, seconds=seconds))
    return BenchLoad(
        rate=arguments.rate or 0.0,
        concurrency=0 if arguments.rate else arguments.concurrency or CONCURRENCY,
        requests=requests or (0 if seconds else REQUESTS),
        seconds=seconds or 0.0,
        prompt_tokens=arguments.prompt_tokens or PROMPT_TOKENS,
        output_tokens=arguments.output_tokens or OUTPUT_TOKENS,
    )


def _model(client: Client, wanted: str) -> str:
    served = [each["id"] for each in client.get("/v1/models")["data"]]
    if not served:
        raise ApiError("no model is served")
    if wanted and wanted not in served:
        raise ApiError(f"{wanted!r} is not served; {', '.join(served)} is")
    return wanted or served[0]


def _model_path(given: Path | None, model: str) -> Path:
    """Raises ConfigError where the model's tokenizer is not there, so that no prompt is measured
    with another's.
    """
    path = options.model_path(given)
    if given is None and path.name != model:
        raise ConfigError(f"name the folder with {model}'s tokenizer: --model-path")
    return path


COMMAND = Command(add_arguments, bench, example="tandem bench --concurrency 16 --requests 200")
