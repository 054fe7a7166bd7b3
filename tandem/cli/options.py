"""Options that several commands have: those of a stack to start, the key of a frontend, numbers."""

from __future__ import annotations

import argparse
import math
from importlib.util import find_spec
from pathlib import Path

from tandem import config, stack_file
from tandem.cli.commands import adding
from tandem.cli.plan import GivenFile, StackOptions
from tandem.errors import ConfigError
from tandem.stack_file import StackFile

RUN_DIR = Path(".run")
DEFAULT_PORT = 8000
MOST_PORT = 65_535


def add_engine(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add(
        "--engine",
        choices=("sim", "sglang", "vllm"),
        help="Engine of the workers: real SGLang or vLLM, or the simulation, which needs no torch."
        " [sglang where it is installed]",
    )
    add(
        "--model-path DIR",
        Path,
        help="Folder of the model. [the tiny model of the package tandem-tiny]",
    )
    add(
        "--engine-option KEY=VALUE",
        action="append",
        default=[],
        dest="engine_options",
        help="An option of the engine; may be given again.",
    )


def add_run_dir(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add(
        "--run-dir DIR",
        Path,
        default=RUN_DIR,
        help="Folder for logs and the list of processes. [%(default)s]",
    )


def add_stack(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add(
        "--config FILE",
        Path,
        help="YAML file of the stack, as `tandem init` writes one. A flag beside it wins.",
    )
    add_engine(parser)
    add_run_dir(parser)
    add("--port", port, help=f"Port of the frontend; 0 picks a free one. [{DEFAULT_PORT}]")
    for phase in ("prefill", "decode"):
        add(
            f"--{phase} N",
            positive,
            help=f"Number of {phase} workers. [1, or none beside --aggregated]",
        )
        add(f"--hook-{phase} MODULE:CLASS", default="", help=f"Output hook of the {phase} workers.")
    add(
        "--aggregated N",
        positive,
        nargs="?",
        const=1,
        help="Number of workers that serve both phases, beside the pairs that --prefill and"
        " --decode ask for, or alone. [0; 1 without a number]",
    )
    add(
        "--token-processes N",
        positive,
        help="Processes that each decode worker's tokens go through; sglang alone. [1]",
    )
    add(
        "--further-model DIR",
        Path,
        action="append",
        default=[],
        dest="further_models",
        help="Folder of a further model, which gets workers of its own; may be given again.",
    )
    add(
        "--certificates DIR",
        Path,
        help="Folder that `tandem certificates --to DIR` made: mutual TLS between the components.",
    )
    add(
        "--test-logits-processor",
        action="store_true",
        help='Force every answer to be "Hello world!": proves the logits path in both phases.',
    )


def stack_options(arguments: argparse.Namespace) -> StackOptions:
    """What the flags ask for, and beside them the file. Raises ConfigError for what argparse cannot
    see is wrong.
    """
    file = given_file(arguments.config) if arguments.config else None
    said = file.content if file else StackFile()
    if arguments.aggregated and (arguments.prefill is None) is not (arguments.decode is None):
        raise ConfigError("beside --aggregated give both --prefill and --decode, or neither")
    prefill, decode, aggregated = _counts(arguments, said)
    if arguments.model_path is None:
        arguments.model_path = said.model_path
    of_file = None if said.engine.type == "auto" else said.engine.type
    return StackOptions(
        engine=engine(arguments.engine or of_file),
        model_path=model_path(arguments.model_path),
        further_models=further_models(arguments),
        port=said.frontend.service.port if arguments.port is None else arguments.port,
        prefill=prefill,
        decode=decode,
        aggregated=aggregated,
        routers=said.router.replicas,
        token_processes=arguments.token_processes or said.decode.tokenProcesses,
        hook_prefill=arguments.hook_prefill,
        hook_decode=arguments.hook_decode,
        test_logits_processor=arguments.test_logits_processor,
        engine_options=engine_options(arguments.engine_options),
        file=file,
        certificates=arguments.certificates and arguments.certificates.resolve(),
    )


def given_file(path: Path) -> GivenFile:
    """Raises ConfigError for a file that is none of a stack."""
    return GivenFile(path, stack_file.read(str(path)))


def _counts(arguments: argparse.Namespace, said: StackFile) -> tuple[int, int, int]:
    """How many workers of each kind: prefill, decode, aggregated."""
    aggregated = said.worker.replicas if said.worker.enabled else 0
    pairs = said.prefill.replicas, said.decode.replicas
    if arguments.aggregated is not None:
        aggregated, pairs = arguments.aggregated, (0, 0)
    prefill, decode = pairs
    return (
        prefill if arguments.prefill is None else arguments.prefill,
        decode if arguments.decode is None else arguments.decode,
        aggregated,
    )


def further_models(arguments: argparse.Namespace) -> tuple[Path, ...]:
    """Folders of models whose names differ from each other's and the first one's. Raises
    ConfigError.
    """
    paths = tuple(map(model_path, arguments.further_models))
    if paths and config.inherited("served_model_name"):
        raise ConfigError("--further-model: one served_model_name cannot be that of several models")
    names = [each.name for each in (model_path(arguments.model_path), *paths)]
    if len(set(names)) < len(names) or any("," in str(path) for path in paths):
        raise ConfigError("--further-model takes folders without a comma, each of another name")
    return paths


def engine_options(pairs: list[str]) -> tuple[str, ...]:
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals) or "," in value:
            raise ConfigError(f"--engine-option {pair!r}: write it KEY=VALUE, without a comma")
    return tuple(pairs)


def engine(given: str | None) -> str:
    """The engine asked for, or else the real one where it is installed."""
    return given or ("sglang" if find_spec("sglang") else "sim")


def model_path(given: Path | None) -> Path:
    """The folder asked for, or that of the tiny model. Raises ConfigError where the folder holds no
    model, and where that package is not installed.
    """
    path = _tiny() if given is None else given
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path} holds no model (no config.json): name one with --model-path")
    return path.resolve()


def _tiny() -> Path:
    try:
        from tandem_tiny import MODEL
    except ModuleNotFoundError as error:
        raise ConfigError(
            "no model is named, and the tiny one is not installed: name one with --model-path, or"
            " pip install tandem-tiny"
        ) from error
    return MODEL


def add_trust(parser: argparse.ArgumentParser) -> None:
    """The key that a frontend asks for, and whom it is believed to be."""
    add = adding(parser)
    add("--api-key-env NAME", default="", help="Variable that holds an API key.")
    add("--ca-file FILE", Path, help="PEM certificates to trust. [the system's]")


def add_slo(parser: argparse.ArgumentParser) -> None:
    """The objectives that goodput is counted by."""
    add = adding(parser)
    for name, default, what in (
        ("ttft", 2.0, "Time to the first token"),
        ("itl", 0.1, "Mean time between the tokens of a request"),
    ):
        add(
            f"--slo-{name} SECONDS",
            positive_number,
            default=default,
            help=f"{what} that goodput allows. [%(default)s]",
        )


def api_key(variable: str) -> str:
    """The key in an environment variable, "" where none is named. Raises ConfigError where it is
    not set.
    """
    if not variable:
        return ""
    if not (key := config.environment().get(variable, "").strip()):
        raise ConfigError(f"--api-key-env: the variable {variable} is not set, or empty")
    # A Secret may hold several, as the frontend's own setting does.
    return key.split(",")[0].strip()


def check_folder(path: Path | None) -> None:
    """A run is not to be lost at its end: raises ConfigError where its file has no folder."""
    if path is not None and not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")


def port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= MOST_PORT:
        raise argparse.ArgumentTypeError(f"must be from 0, any free one, to {MOST_PORT}")
    return number


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def share(text: str) -> float:
    number = float(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError("must be above 0 and below 1")
    return number


def positive_number(text: str) -> float:
    number = float(text)
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError("must be above 0")
    return number
