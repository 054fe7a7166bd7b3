"""Every executable, and the executor, chooses gRPC's poller before it imports gRPC, and a choice of
yours stays.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tandem import config

SAY = """
import builtins, os, sys
plain = builtins.__import__
def importing(name, *rest):
    if name == "grpc" and "grpc" not in sys.modules:
        print(os.environ.get("GRPC_EXPERIMENTS", "unset"))
    return plain(name, *rest)
builtins.__import__ = importing
import {module}
"""


MODULES = [
    "frontend.__main__",
    "router.__main__",
    "prefill_worker.__main__",
    "decode_worker.__main__",
    "tandem.executor",
]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("yours", ["", "-event_engine_dns"])
def test_the_poller_is_chosen_before_grpc_is_imported(module: str, yours: str) -> None:
    environment = {k: v for k, v in config.environment().items() if k != "GRPC_EXPERIMENTS"}
    if yours:
        environment["GRPC_EXPERIMENTS"] = yours
    said = subprocess.run(
        [sys.executable, "-c", SAY.format(module=module)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    expected = yours or "-event_engine_client,-event_engine_listener"
    assert said.stdout.split() == [expected]
