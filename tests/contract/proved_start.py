"""A program: starts an SGLang engine, and prints as JSON which units it lacks, and why, and what it
does not offer.

python proved_start.py MODEL_PATH ROLE [PROCESSOR]
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tandem.engine.base import EngineSettings, Role
from tandem.logits.registry import Registry
from tandem.logits.settings import parse
from tandem_sglang import SglangEngine


async def main() -> None:
    model_path, role, *processor = sys.argv[1:]
    settings = EngineSettings(
        model_path=Path(model_path),
        model_name="tiny",
        max_sequences=8,
        host="127.0.0.1",
        options={"device": "cpu"},
        registry=Registry.from_settings(parse(dict(zip(["faults"], processor, strict=False)))),
    )
    engine = SglangEngine(Role(role), settings)
    try:
        said = await engine.start()
        lacks = {unit.name: unit.lacks for unit in engine.figures().units if unit.lacks}
        refused = [sorted(said.cannot_sample), sorted(said.cannot_apply)]
        sys.stdout.write("\n" + json.dumps([lacks, *refused]) + "\n")
    finally:
        await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
