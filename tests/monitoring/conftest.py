"""What tests of dashboards and rules share: Prometheus' own tools, the rules as a release gets
them, and a stack to watch.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from watching import Tools, options, traffic

from monitoring.generate import OUTPUT
from tandem.cli.stack import Stack
from tandem_tools.monitoring.release import fill

HERE = Path(__file__).resolve().parent
READY_SECONDS = 60


@pytest.fixture(scope="session")
def tools() -> Tools:
    """Those of the machine, or of Debian's package."""
    script = HERE.parents[1] / "scripts" / "set_up_prometheus.sh"
    done = subprocess.run([script], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    return Tools(folder / "prometheus", folder / "promtool")


@pytest.fixture(scope="session")
def rules() -> dict[str, str]:
    """The generated files by name, with the chart's defaults for their placeholders."""
    return {path.name: fill(path.read_text()) for path in (OUTPUT / "rules").glob("*.yaml")}


@pytest.fixture(scope="session")
def watched_code() -> Iterator[None]:
    """Workers can import watched_code.py."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), before)))
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def stack(
    model_path: Path, watched_code: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """One pair with hooks in a pool, a classifier and logits processors, after some traffic. Who
    breaks it puts it back.
    """
    folder = tmp_path_factory.mktemp("watched")
    with Stack(options(model_path, folder), run_dir=folder / "stack") as stack:
        stack.wait_ready(timeout_seconds=READY_SECONDS)
        traffic(stack.url)
        yield stack
