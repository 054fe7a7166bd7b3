"""Settings of every component, from four places: flag, then environment, then YAML file, then
default.

A component describes its settings as a frozen dataclass whose fields are made with `setting`, which
says what each does. Flags, variables, `--help`, `--print-config` and docs/configuration.md all come
from it. This module is the only reader of os.environ.

    @dataclass(frozen=True, kw_only=True)
    class RouterConfig:
        listen: str = setting("127.0.0.1:7000", "Address to serve gRPC on.")

    config = load(RouterConfig, prog="tandem-router")       # --listen, TANDEM_LISTEN, `listen:`
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import os
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import yaml

from tandem import ranges, settings_file, stack_file
from tandem.errors import ConfigError, MissingSettingError, StartError
from tandem.ranges import Range
from tandem.setting_names import NAMES
from tandem.settings_file import SettingsFile, nearest
from tandem.version import add_version

ENV_PREFIX = "TANDEM_"
FILE_VARIABLE = "TANDEM_CONFIG"
_OF_A_SERVICE = re.compile(r"TANDEM_.*_(SERVICE_HOST|(SERVICE_)?PORT(_[A-Z0-9_]+)?)")
"""What Kubernetes tells a pod of the Services beside it, where it is let."""
T = TypeVar("T")
E = TypeVar("E", bound=StartError)
Source = Literal["flag", "environment", "file", "default"]
REQUIRED: Any = dataclasses.MISSING


def setting(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    secret: bool = False,
) -> Any:
    """A field of a settings class. `help` says the effect, the unit and the reason, and the bounds
    are what `ranges.check` holds a number to. A secret is never printed, and a given secret must
    not be empty: its file was, or its variable, and the process would be open where it was to be
    closed.

    The default may be REQUIRED. A tuple, list or mapping setting is separated by commas in flags
    and variables, or written there as JSON.
    """
    metadata = {"help": help, "secret": secret}
    if isinstance(default, dict | list):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return ranges.ranged(default, Range(above, at_least, at_most), **metadata)


@dataclass(frozen=True)
class LoadedSettings:
    """Raw settings with the source of each, before they become a component's class."""

    values: Mapping[str, Any]
    sources: Mapping[str, Source]


@dataclass(frozen=True)
class GivenSettings(Generic[T]):
    """What a process was told at its start."""

    settings: T
    only_check: bool
    """Whether the component is to say that it would start with these settings, and to end."""
    file: SettingsFile
    from_file: frozenset[str]
    """The settings that the file decides."""

    def located(self, error: E) -> E:
        """`error`, with the line of the file that it is about, where that is known."""
        return self.file.located(error, self.from_file)


def load(
    model: type[T],
    *,
    prog: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> T:
    """The settings of this process, as `read` has them."""
    return read(model, prog=prog, argv=argv, environ=environ).settings


def read(
    model: type[T],
    *,
    prog: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> GivenSettings[T]:
    """What this process is told. `--print-config` and `--help` print and exit.

    Raises ConfigError for anything unknown, malformed or missing; its message names the setting and
    what to do, and for a setting of the file its line.
    """
    environ = os.environ if environ is None else environ
    _check_variables(model, environ)
    options = vars(_parser(model, prog).parse_args(argv))
    path = options.pop("config_file") or environ.get(FILE_VARIABLE)
    stack = options.pop("stack_file", None)
    show, only_check = options.pop("print_config"), options.pop("check_config")
    if path and stack:
        raise ConfigError(f"the stack's file {stack} and the settings file {path}: give one")
    if stack:
        file = stack_file.part(stack, _component(prog))
    else:
        file = settings_file.read(path) if path else SettingsFile()
    try:
        loaded = _merge(model, options, environ, file.content)
    except ConfigError as error:
        raise file.located(error, file.content) from None
    from_file = frozenset(name for name, source in loaded.sources.items() if source == "file")
    missing = [name for name, value in loaded.values.items() if value is REQUIRED]
    if show:
        sys.stdout.write(describe(model, loaded))
    try:
        if missing:
            raise MissingSettingError(f"{prog} needs {', '.join(map(flag_name, missing))}")
        settings = model(**loaded.values)
    except ConfigError as error:
        if show and isinstance(error, MissingSettingError):
            raise SystemExit(0) from None
        raise file.located(error, from_file) from None
    if show:
        raise SystemExit(0)
    return GivenSettings(settings, only_check, file, from_file)


def of_mapping(model: type[T], content: Mapping[str, Any]) -> T:
    """Settings that a program gives as a settings file writes them; what is not there is the
    default. Raises ConfigError.
    """
    return model(**_merge(model, {}, {}, content).values)


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_name(name: str) -> str:
    return ENV_PREFIX + name.upper()


def fields_of(model: type[Any]) -> list[dataclasses.Field[Any]]:
    """The settings of a class, its own before those that it has in common with others."""
    own = model.__annotations__
    return sorted(dataclasses.fields(model), key=lambda field: field.name not in own)


def describe(model: type[Any], loaded: LoadedSettings) -> str:
    """The settings as YAML, each with the source of its value: a settings file that says the same,
    but for secrets, which are never shown.
    """
    lines = []
    for field in fields_of(model):
        value = loaded.values[field.name]
        if value is REQUIRED:
            shown = "null"
        elif hidden := field.metadata["secret"] and value:
            shown = "'********'"
        else:
            shown = written(value)
        comment = "# " if hidden else ""
        lines.append(f"{comment}{field.name}: {shown}  # {loaded.sources[field.name]}\n")
    return "".join(lines)


def written(value: Any) -> str:
    """A setting's value, as a settings file has it in a line."""
    text: str = yaml.safe_dump(
        _plain(value), default_flow_style=True, width=sys.maxsize, allow_unicode=True
    )
    return text.removesuffix("...\n").strip()


def _plain(value: Any) -> Any:
    """With nothing in it that YAML has no word for."""
    if isinstance(value, tuple | list):
        return list(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return str(value) if isinstance(value, Path) else value


def inherited(name: str) -> str:
    """What the environment says of a setting that is not this process's but of one that it starts;
    empty: nothing.
    """
    return os.environ.get(variable_name(name), "")


def inherited_switch(name: str, *, default: bool) -> bool:
    """`inherited` for a variable that is true or false. Raises ConfigError."""
    raw = inherited(name)
    return bool(_scalar(raw, bool, name)) if raw else default


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A copy of this process's environment for a child, with `extra` laid over it."""
    return {**os.environ, **(extra or {})}


def export(variables: Mapping[str, str], *, inherited: str = "") -> None:
    """Set variables that a library reads from the environment. What is set already stays, unless it
    is of the form `inherited`, a regular expression: a process that started this one has set it.
    """
    for name, value in variables.items():
        if inherited and re.fullmatch(inherited, os.environ.get(name, "")):
            os.environ[name] = value
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def exported(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables that a library reads from the environment, until this ends: then they are as
    they were.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _check_variables(model: type[Any], environ: Mapping[str, str]) -> None:
    """Raises ConfigError for a variable that looks like a setting and is none: of any component, as
    all of a machine may have one environment.
    """
    own = (field.name for field in dataclasses.fields(model))
    known = {FILE_VARIABLE, *map(variable_name, (*NAMES, *own))}
    for name in sorted(environ.keys() - known):
        if name.startswith(ENV_PREFIX) and not _OF_A_SERVICE.fullmatch(name):
            hint = nearest(name, known, cutoff=0.85)
            raise ConfigError(f"the variable {name} is no setting{hint}")


def _component(prog: str) -> str:
    """The component that a program is, "" for others: "decode_worker" of "tandem-decode-worker"."""
    name = prog.removeprefix("tandem-").replace("-", "_")
    return name if name in stack_file.SECTIONS else ""


def _parser(model: type[Any], prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=(model.__doc__ or "").splitlines()[0] or None,
        argument_default=None,
        allow_abbrev=False,
    )
    add_version(parser)
    parser.add_argument(
        "--config", dest="config_file", metavar="FILE", help="YAML file of settings."
    )
    if _component(prog):
        parser.add_argument(
            "--stack",
            dest="stack_file",
            metavar="FILE",
            help="YAML file of a whole stack, of which the component takes its part"
            " (docs/stack-file.md).",
        )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="Print the settings with their sources, and exit.",
    )
    parser.add_argument(
        "--check-config",
        action="store_true",
        help="Say whether the component would start with these settings, and exit.",
    )
    hints = typing.get_type_hints(model)
    for field in fields_of(model):
        text = f"{field.metadata['help']} [{variable_name(field.name)}"
        if field.default is not dataclasses.MISSING and not field.metadata["secret"]:
            text += f"; default: {field.default!r}"
        if bounds := str(ranges.of(field)):
            text += f"; {bounds}"
        options: dict[str, Any] = {"dest": field.name, "help": text.replace("%", "%%") + "]"}
        if hints[field.name] is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["metavar"] = field.name.upper()
        parser.add_argument(flag_name(field.name), **options)
    return parser


def _merge(
    model: type[Any],
    options: Mapping[str, Any],
    environ: Mapping[str, str],
    content: Mapping[str, Any],
) -> LoadedSettings:
    fields = {field.name: field for field in dataclasses.fields(model)}
    if unknown := sorted(map(str, content.keys() - fields.keys())):
        hinted = (name + nearest(name, fields) for name in unknown)
        raise ConfigError(f"unknown settings: {', '.join(hinted)}")
    hints = typing.get_type_hints(model)
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for name, field in fields.items():
        secret = field.metadata["secret"]
        if secret and name in content and content[name] is None:
            raise _empty_secret(name)
        candidates: tuple[tuple[Source, Any], ...] = (
            ("flag", options.get(name)),
            ("environment", environ.get(variable_name(name))),
            ("file", content.get(name)),
        )
        for source, raw in candidates:
            if raw is not None:
                values[name], sources[name] = convert(raw, hints[name], name), source
                if secret and not values[name]:
                    raise _empty_secret(name)
                break
        else:
            values[name], sources[name] = _default(field), "default"
    return LoadedSettings(values, sources)


def _empty_secret(name: str) -> ConfigError:
    return ConfigError(f"{name} is given and holds nothing: give a value, or leave it out")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def convert(raw: Any, hint: Any, name: str) -> Any:
    """`raw` as `hint`; text is parsed, anything else must have the type already. Raises
    ConfigError, which begins with `name`.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        kinds = [kind for kind in arguments if kind is not type(None)]
        return convert(raw, kinds[0], name)
    if origin is Literal:
        if raw not in arguments:
            raise ConfigError(f"{name} must be one of {', '.join(arguments)}, not {raw!r}")
        return raw
    if origin is tuple:
        items = _items(raw, name) if isinstance(raw, str) else raw
        if not isinstance(items, list | tuple):
            raise ConfigError(f"{name} must be a list, not {raw!r}")
        return tuple(convert(item, arguments[0], name) for item in items)
    if origin is dict or hint is dict:
        mapping = _mapping(raw, name)
        if arguments == (str, str) and not all(isinstance(each, str) for each in mapping.values()):
            raise ConfigError(f"{name} must be a mapping of texts to texts")
        return mapping
    return _scalar(raw, hint, name)


def _items(raw: str, name: str) -> Any:
    """A list that is written as one, or the parts between commas."""
    if raw.lstrip().startswith("[") and raw.rstrip().endswith("]"):
        return settings_file.read_value(raw, name)
    return _split(raw)


def _split(raw: str) -> list[str]:
    """The parts between commas, but for those within braces: a value may be a JSON object."""
    parts, depth = [""], 0
    for character in raw:
        depth += (character == "{") - (character == "}" and depth > 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _mapping(raw: Any, name: str) -> dict[str, Any]:
    """A mapping from YAML, or from text: JSON, or `key=value,key=value`."""
    if isinstance(raw, str) and raw.lstrip().startswith("{"):
        raw = settings_file.read_value(raw, name)
    if isinstance(raw, dict):
        return raw
    if not isinstance(raw, str):
        raise ConfigError(f"{name} must be a mapping, not {raw!r}")
    pairs = [part.partition("=") for part in _split(raw)]
    if bad := [key for key, equals, _ in pairs if not (key and equals)]:
        raise ConfigError(
            f"{name} must be written key=value,key=value, or as JSON; {bad[0]!r} is not"
        )
    return {key.strip(): value.strip() for key, _, value in pairs}


def _scalar(raw: Any, hint: type[Any], name: str) -> Any:
    if hint is bool and isinstance(raw, str):
        word = raw.strip().lower()
        if word not in ("true", "false", "1", "0", "yes", "no"):
            raise ConfigError(f"{name} must be true or false, not {raw!r}")
        return word in ("true", "1", "yes")
    if hint in (int, float) and isinstance(raw, str):
        try:
            return hint(raw)
        except ValueError:
            raise ConfigError(f"{name} must be a number, not {raw!r}") from None
    if hint is float and type(raw) is int:
        return float(raw)
    if hint is Path and isinstance(raw, str | Path):
        return Path(raw)
    if issubclass(hint, str) and hint is not str and isinstance(raw, str):
        return _text(raw, hint, name)
    if type(raw) is not hint:
        raise ConfigError(f"{name} must be a {hint.__name__}, not {raw!r}")
    return raw


def _text(raw: str, kind: type[str], name: str) -> str:
    """`raw` as a kind of text that takes some texts alone, and raises ValueError for others."""
    try:
        return kind(raw)
    except ValueError as error:
        if issubclass(kind, enum.Enum):
            raise ConfigError(f"{name} must be one of {', '.join(kind)}, not {raw!r}") from None
        raise ConfigError(f"{name} cannot be {raw!r}: {error}") from None
