"""Schemathesis against a stack: what it makes of /openapi.json is answered as that says.

`positive_data_acceptance` is left out, because a schema cannot say all that is refused: token ids
above the vocabulary, neither `prompt` nor `messages`, keys of `logit_bias` that are no numbers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .stack import sim_stack

NAME = "described"
"""Beside the targets' names."""
EXAMPLES = 200
"""Of each path, in a full run."""
_SECONDS = 3600.0
_UNSAID = "positive_data_acceptance"


def hold(*, seed: int, examples: int, whole: bool = True) -> bool:
    """Whether every answer was as described; what was not is printed. `whole`: the limits of every
    field are tried too, which takes minutes.
    """
    phases = ("examples", "fuzzing", "stateful", *(("coverage",) if whole else ()))
    program = Path(sys.executable).with_name("schemathesis")
    with sim_stack() as stack:
        command = (
            *(program, "run", f"{stack.url}/openapi.json", "--seed", str(seed)),
            *("--max-examples", str(examples), "--exclude-checks", _UNSAID),
            *("--phases", ",".join(phases)),
        )
        ended = subprocess.run(
            command, env=os.environ | _HOOKS, cwd=Path(__file__).parents[1], timeout=_SECONDS
        )
        stack.check_running()
    return ended.returncode == 0


_HOOKS = {"SCHEMATHESIS_HOOKS": "fuzzing.described_hooks"}
