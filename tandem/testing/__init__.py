"""Fixtures and functions for people who test their output hooks.

`run_hook` passes chunks through a hook in the test's own process, in microseconds. `sim_stack`
starts a whole stack with the hook in its workers, and gives an OpenAI-compatible address. As pytest
fixtures: `pytest_plugins = ["tandem.testing.plugin"]`.
"""

from tandem.testing.hook_run import HookRun, run_hook, run_hook_async, run_outputs
from tandem.testing.sim_stack import SimStack, sim_stack

__all__ = ["HookRun", "SimStack", "run_hook", "run_hook_async", "run_outputs", "sim_stack"]
