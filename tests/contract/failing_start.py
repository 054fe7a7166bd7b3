"""A program with a child of its own, in which SGLang cannot start. Prints the pid and why."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from tandem.engine.base import EngineSettings, Role
from tandem.errors import StartError
from tandem.logits.registry import Registry
from tandem_sglang import SglangEngine

CHANGED = {"prefill_attention_backend": "triton", "decode_attention_backend": "triton"}
SETTINGS = EngineSettings(
    model_path=Path(sys.argv[1]),
    model_name="tiny",
    max_sequences=1,
    host="127.0.0.1",
    options={"attention_backend": "torch_native", "server_args": json.dumps(CHANGED)},
    registry=Registry.builtin(),
)

if __name__ == "__main__":
    child = subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL)
    try:
        asyncio.run(SglangEngine(Role.PREFILL, SETTINGS).start())
    except StartError as error:
        print(child.pid, error)
