"""Run in a process of its own by test_sglang_replaced.py: which names of SGLang's modules and
classes mean something else once Tandem has added what it adds, by what an engine is started with.
They are found by looking before and after, in a process that is forked for each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sglang_units import DEFAULT

from tandem_sglang import controller, fitting, scheduler, units
from tandem_sglang.additions import shared_numbers


def names() -> dict[str, Any]:
    """What each name of SGLang's means now."""
    found: dict[str, Any] = {}
    for place, module in list(sys.modules.items()):
        if place.partition(".")[0] == "sglang":
            for name, value in list(vars(module).items()):
                found[f"{place}.{name}"] = value
                if isinstance(value, type) and value.__module__ == place:
                    found |= {f"{place}.{name}.{key}": each for key, each in vars(value).items()}
    return found


def replaced(add: Callable[[], None]) -> list[str]:
    """The names that mean something else afterwards, in the modules that were there before."""
    before, modules = names(), set(sys.modules)
    add()
    return sorted(
        name.removeprefix("sglang.srt.")
        for name, value in names().items()
        if before.get(name) is not value
        if any(name.startswith(f"{each}.") for each in modules if each.startswith("sglang."))
    )


def apart(add: Callable[[], None]) -> list[str]:
    """`replaced` in a fork."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.write(writes, json.dumps(replaced(add)).encode())
        os._exit(0)
    os.close(writes)
    with open(reads, "rb") as answer:
        return list(json.loads(answer.read()))


def with_(**given: Any) -> Callable[[], None]:
    return lambda: scheduler.add(replace(DEFAULT, **given), None)


def between_data_ranks() -> None:
    """In the worker, and in the process that it starts."""
    fitting.put_in(replace(DEFAULT, states=shared_numbers(2)), in_worker=True)
    controller.run_data_parallel_controller_process = lambda **_: None
    controller.run(())


WAYS: dict[str, Callable[[], None]] = {
    "default": with_(),
    "tensor ranks": with_(ranks=2),
    "pipeline": with_(stages=2),
    "seeded_sampling false": with_(seeded=False),
    "speculative": with_(speculative=True),
    "mooncake": with_(transfer_backend="mooncake"),
    "data_parallel": between_data_ranks,
}

if __name__ == "__main__":
    for unit in units.UNITS:  # what they import is no change of theirs
        for name in (*unit.put, *(part for _, part in unit.parts)):
            fitting.own(name)
    sys.stdout.write("\n" + json.dumps({way: apart(add) for way, add in WAYS.items()}))
