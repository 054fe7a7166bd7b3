"""pytest fixtures for hook authors: `pytest_plugins = ["tandem.testing.plugin"]` in a conftest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tandem.testing.sim_stack import SimStack, sim_stack

StartStack = Callable[..., SimStack]


@pytest.fixture
def tandem_stack(tmp_path: Path) -> Iterator[StartStack]:
    """Starts a stack for this test, with the arguments of `tandem.testing.sim_stack`; it is stopped
    when the test ends, and its logs lie in the test's tmp_path.
    """
    with ExitStack() as stacks:
        yield lambda *args, **kwargs: stacks.enter_context(
            sim_stack(*args, **{"run_dir": tmp_path / "tandem"} | kwargs)
        )
