"""Whether SGLang starts with what it was given. What does not go together with another argument, or
with the model, it changes with a warning, which a worker does not show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.errors import StartError
from tandem_sglang import arguments, server_arguments
from tandem_sglang.options import Options

_ALONE = {
    "disaggregation_mode": "null",
    "dp_size": 1,
    "enable_lora": False,
    "nnodes": 1,
    "pp_size": 1,
}
"""Arguments left out of the record while they have these values."""
_UNNAMED = ("grammar_backend", "incremental_streaming_output")
"""What Tandem sets beside what is called its own."""
_ELSEWHERE = "model_path"
"""For some formats of weights SGLang writes a folder of its own of the model's."""


def of(given: Mapping[str, Any], options: Options) -> Mapping[str, Any]:
    """The arguments that SGLang must not change, as it is to resolve them. SGLang may change a
    default of Tandem's that nobody chose.
    """
    free = {*arguments.CHOSEN} - arguments.chosen(options).keys() | {_ELSEWHERE}
    if options.dtype == "auto":
        free.add("dtype")
    if not options.disable_overlap_schedule:
        free.add("disable_overlap_schedule")
    names = {*server_arguments.OWNED, *_UNNAMED} - free
    kept: dict[str, Any] = _ALONE | {name: value for name, value in given.items() if name in names}
    if "chunked_prefill_size" in kept:
        kept["chunked_prefill_size"] //= kept["dp_size"]  # a rank's share of it
    return kept


def check(kept: Mapping[str, Any], resolved: Mapping[str, Any]) -> None:
    """Raises StartError naming what SGLang has changed."""
    changed = [
        f"{name} from {value!r} to {resolved[name]!r} (set by {_setter(name)})"
        for name, value in kept.items()
        if not _same(value, resolved[name])
    ]
    if changed:
        raise StartError(
            f"SGLang changes {'; '.join(changed)}: something in engine option server_args, or the "
            "model, does not go with that"
        )


def _same(given: Any, resolved: Any) -> bool:
    """SGLang leaves what is off at None, and adds numbers to adapters."""
    if given is False:
        return not resolved
    if isinstance(given, list):
        pairs = zip(given, resolved or (), strict=False)
        return len(given) == len(resolved or ()) and all(a.items() <= b.items() for a, b in pairs)
    return bool(given == resolved)


def _setter(name: str) -> str:
    return server_arguments.OWNED.get(name, "Tandem")
