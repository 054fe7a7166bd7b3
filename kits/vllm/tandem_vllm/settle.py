"""Makes vLLM's engine process ready, before it loads a model. vLLM calls `register` as a plugin of
its group `vllm.general_plugins`, in each of its processes.
"""

from __future__ import annotations

import os
import signal

from tandem import config, orphans
from tandem.usercode.deadline import WATCH

_NAME = "vllm_parent"
"""The process id of the worker, in the environment of what it starts."""

_ON_CPU = "vllm_on_cpu"
"""Set where vLLM computes on CPUs, by `arguments.environment`."""


def announce(pid: int) -> None:
    """Call this in the worker, before vLLM starts a process."""
    config.export({config.variable_name(_NAME): str(pid)}, inherited=r"\d+")


def register() -> None:
    """In a process that a worker has started: a worker that is killed leaves nothing behind, Ctrl-C
    is the worker's, which has requests to finish, and a logits processor that takes too long is
    interrupted. On CPUs Linux is asked for AMX before a kernel uses it: vLLM asks only where its
    matrices are large, and its attention would end the process by SIGILL. Anywhere else: nothing.
    """
    worker = config.inherited(_NAME)
    if not worker or int(worker) == os.getpid():
        return
    orphans.die_with(os.getppid())  # the worker, or of a rank the process of the engine
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    WATCH.install()
    if config.inherited(_ON_CPU):
        import torch  # a GPU's process needs it no earlier than vLLM does

        torch.cpu._init_amx()
