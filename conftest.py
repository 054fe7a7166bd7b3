"""Fixtures, marks and reports of the tests of all folders."""

from __future__ import annotations

import gc
import os
import pkgutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fork_server
import httpx
import pytest
from hypothesis import HealthCheck, settings
from rerun_failed import FailedRerun
from skip_reasons import SkipReasons
from xdist.scheduler import LoadScopeScheduling

from tandem.free_ports import FreePorts

ROOT = Path(__file__).resolve().parent
# A busy machine may take any time for an example, and a fixture serves all examples of a test.
settings.register_profile(
    "tandem",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("tandem")
MODELS = {"llama", "qwen3"}
"""SGLang's modules of the models that tests load."""


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The model that ships with the repository."""
    return ROOT / "model" / "tandem-tiny"


@pytest.fixture
def free() -> Iterator[FreePorts]:
    """Ports that are the test's alone while it runs: one that is given up before its server
    listens may be another test's by then.
    """
    with ExitStack() as held:
        yield FreePorts(held)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rerun-failed",
        action="store_true",
        help="run what failed once more, alone; what then passes is unsteady (tests/outcomes)",
    )
    parser.addoption(
        "--write-traces",
        action="store_true",
        help="write the traces that are run (tests/unit/trace_files.py) anew, as is answered now",
    )


def pytest_configure(config: pytest.Config) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            # As `nohup` and a shell's background have it. What tests start would ignore it too;
            # with a handler that does nothing this process does, and they do not.
            signal.signal(number, lambda *_: None)
    _leave_out_models()
    # Else a client of httpx reads all certificates that the machine trusts: 30 ms of CPU time.
    httpx._transports.default.create_ssl_context = cache(httpx.create_ssl_context)
    # The collector of Go's programs, and of Helm in this process, takes a third of their CPU time.
    os.environ.setdefault("GOGC", "400")
    fork_server.install()
    if hasattr(config, "workerinput"):
        return  # the process that started this one reports
    config.pluginmanager.register(SkipReasons())
    if config.getoption("rerun_failed"):
        config.pluginmanager.register(FailedRerun(config))


def _leave_out_models() -> None:
    """Each scheduler of SGLang would import its modules of all 240 models: 4 s of CPU time."""
    if (found := find_spec("sglang")) is None or found.origin is None:
        return
    folder = Path(found.origin).parent / "srt" / "models"
    names = {module.name for module in pkgutil.iter_modules([str(folder)])}
    os.environ.setdefault("SGLANG_DISABLED_MODEL_ARCHS", ",".join(sorted(names - MODELS)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts SGLang takes longest, and begins. What needs vLLM is left out without it."""
    if find_spec("vllm") is None:
        reason = "vLLM is not installed: `make vllm-test` runs this in an environment of its own"
        for item in items:
            if item.get_closest_marker("vllm"):
                item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: not _starts_sglang(item.nodeid, item.config.rootpath))


def pytest_collection_finish() -> None:
    """What was collected stays: a garbage collection would look through all of it, for a second."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _FilesTogether(config, log)


class _FilesTogether(LoadScopeScheduling):
    """Where tests run in several processes, those of a file run in one of them, and so do all of a
    kind that start SGLang: each of its engines takes gigabytes.
    """

    def remove_node(self, node: Any) -> str | None:
        """A test whose process ended has failed: xdist would give it to the next process too."""
        units = self.assigned_work[node].values()
        for unit in units:
            for test, ended in unit.items():
                if not ended:
                    unit[test] = True
                    super().remove_node(node)
                    return test
        super().remove_node(node)
        return None

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        sglang = _starts_sglang(nodeid, self.config.rootpath)
        return f"sglang, {path.split('/')[1]}" if sglang else path


def _starts_sglang(nodeid: str, root: Path) -> bool:
    of_its_file = _is_of_sglang(root / nodeid.partition("::")[0])
    return "sglang" in nodeid.partition("[")[2] or of_its_file


@cache
def _is_of_sglang(path: Path) -> bool:
    """Whether all of a file is, or a test of it that has no engine in its name."""
    return "mark.sglang" in path.read_text(encoding="utf-8")
