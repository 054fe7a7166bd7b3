"""`tandem doctor` and `tandem completion`: what they tell of a machine, and to a shell."""

from __future__ import annotations

import json
import socket
import subprocess
from collections import namedtuple
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.cli import main, status
from tandem.cli.client import ApiError
from tandem.cli.status import ComponentStatus, StackStatus
from tandem.engine.base import EngineUnit, UnitState
from tandem_tools import doctor
from tandem_tools.doctor import Finding

GPU = "NVIDIA H200, 143771 MiB, 570.1"
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(doctor, "_gpus", list)
    monkeypatch.setattr(doctor, "RDMA", tmp_path / "no rdma")


def of(about: str, run_dir: Path = Path(".run")) -> list[Finding]:
    return [each for each in doctor.examine(run_dir).findings if each.about == about]


@pytest.mark.promise("S5-757")
def test_the_report_has_versions_and_variables_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_API_KEYS", "sesame")
    monkeypatch.setenv("TANDEM_HOOKS", '{"chain": [{"path": "a:B", "config": {"pass": "sesame"}}]}')
    monkeypatch.setenv("TANDEM_ENGINE_OPTIONS", "hub_token=sesame")
    monkeypatch.setenv("UCX_TLS", "rc,cuda")
    monkeypatch.setenv("HTTP_PROXY", "http://somebody:sesame@proxy:3128")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("UNRELATED", "sesame")
    run = tmp_path / ".run"
    run.mkdir()
    (run / "router.log").write_text("a line\n")
    (run / "frontend.log").mkdir()
    assert main(["doctor", "--to", "report.json", "--with-logs"]) in (0, 1)
    assert "attach it" in capsys.readouterr().out
    written = (tmp_path / "report.json").read_text()
    report = json.loads(written)
    assert "sesame" not in written
    assert report["environment"]["TANDEM_API_KEYS"] == "(hidden)"
    assert report["environment"]["UCX_TLS"] == "rc,cuda"
    assert report["environment"]["HTTP_PROXY"] == "http://(hidden)@proxy:3128"
    assert "UNRELATED" not in report["environment"]
    assert report["versions"]["tandem-serving"]
    assert report["logs"] == {
        "frontend": ["cannot be read: Is a directory"],
        "router": ["a line"],
    }
    assert main(["doctor", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["logs"] == {}


@pytest.mark.promise("S5-757")
def test_what_is_bad_says_what_to_do_and_gives_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage(2**26, 0, 2**26))
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda which: (256, 256))
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setattr(doctor.os, "sysconf", lambda name: 2**15)
    assert main(["doctor"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    for words in (
        "!! memory 1.0 GiB give this machine",
        "!! shared memory /dev/shm has 0.1 GiB engines' processes",
        "!! open files at most 256 each client takes one",
        "has 0.1 GiB left for logs",
        "!! proxy https_proxy is set, and no_proxy does not name this machine",
    ):
        assert words in told


@pytest.mark.parametrize("spared", ["127.0.0.1", "localhost,10.0.0.0/8", "*"])
def test_a_proxy_that_spares_this_machine_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, spared: str
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    assert [each.level for each in of("proxy")] == ["bad"]
    monkeypatch.setenv("no_proxy", spared)
    assert of("proxy") == []


def test_a_folder_that_cannot_be_written_and_a_damaged_state_are_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    (found,) = of("run folder", tmp_path / "not" / "there")
    assert (found.level, "--run-dir" in found.advice) == ("bad", True)
    (tmp_path / "stack.json").write_text("{")
    (found,) = of("stack", tmp_path)
    assert (found.level, "is damaged" in found.said) == ("bad", True)
    assert main(["doctor", "--to", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("gpus", "installed", "about", "level"),
    [
        ([], {}, "only the simulated engine is installed", "note"),
        ([GPU], {}, "only the simulated engine is installed", "bad"),
        ([GPU], {"sglang": "0.5.21"}, "sglang 0.5.21 without tandem-sglang", "bad"),
        ([GPU], {"sglang": "9", "tandem-sglang": "1"}, "sglang 9; tandem-sglang takes", "ok"),
    ],
)
def test_engines_are_held_against_the_gpus_and_their_kits(
    monkeypatch: pytest.MonkeyPatch,
    gpus: list[str],
    installed: dict[str, str],
    about: str,
    level: str,
) -> None:
    monkeypatch.setattr(doctor, "_gpus", lambda: gpus)
    monkeypatch.setattr(doctor, "versions", lambda: installed)
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["sglang>=0.5.21,<0.5.24"])
    (found,) = of("engine")
    assert (found.said.startswith(about), found.level) == (True, level)
    assert [each.said for each in of("GPU")] == (gpus or ["nvidia-smi tells of none"])


def test_rdma_wants_an_active_port_locked_memory_and_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_gpus", lambda: [GPU])
    assert "TCP" in of("RDMA")[0].advice
    for number, state in enumerate(("4: ACTIVE", "1: DOWN")):
        port = tmp_path / "rdma" / f"mlx5_{number}" / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    monkeypatch.setattr(doctor, "RDMA", tmp_path / "rdma")
    monkeypatch.setattr(doctor, "PEER_MEMORY", tmp_path / "no module")
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda which: (2**16, 2**20))
    first, second, locked, module = of("RDMA")
    assert first.said == "mlx5_0 port 1: 4: ACTIVE, 400 Gb/sec (4X NDR), unknown"
    assert (first.level, second.level, locked.level, module.level) == ("ok", "note", "bad", "note")
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda which: (-1, -1))
    monkeypatch.setattr(doctor, "PEER_MEMORY", tmp_path)
    assert [each.level for each in of("RDMA")] == ["ok", "note"]


@pytest.mark.parametrize(
    "raised",
    [
        FileNotFoundError("nvidia-smi"),
        subprocess.CalledProcessError(9, "nvidia-smi"),
        subprocess.TimeoutExpired("nvidia-smi", 1),
    ],
)
def test_a_machine_whose_nvidia_smi_fails_or_hangs_has_no_gpu(
    monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    monkeypatch.undo()

    def run(*_: Any, **__: Any) -> Any:
        raise raised

    monkeypatch.setattr(doctor.subprocess, "run", run)
    assert doctor._gpus() == []


def test_a_port_that_somebody_holds_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(doctor.options, "DEFAULT_PORT", taken.getsockname()[1])
        (found,) = of("port")
    assert (found.level, "--port 0" in found.advice) == ("note", True)
    assert of("port") == []


# --- completion -----------------------------------------------------------------------------------

ASKING = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_tandem
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.promise("S5-757")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["st"], ["status"]),
        (["up", "--engine-"], ["--engine-option"]),
        (["up", "--engine", "s"], ["sglang", "sim"]),
        (["config", "ch"], ["check"]),
        (["top", "--onc"], ["--once"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_bash_completes_commands_options_and_choices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], completed: list[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "complete.sh").write_text(capsys.readouterr().out)
    asked = subprocess.run(
        ["bash", "-c", ASKING, "bash", "complete.sh", "tandem", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert sorted(asked.stdout.split()) == completed


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_other_shells_are_told_of_all_commands(
    capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    assert main(["completion", shell]) == 0
    written = capsys.readouterr().out
    assert "fetch-model" in written
    assert "plan-fit" in written


@pytest.mark.promise("S5-805")
def test_units_that_an_engine_lacks_are_noted_with_what_holds_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    units = [
        EngineUnit(name="pages", promise="p", state=UnitState.KEPT),
        EngineUnit(name="forms", promise="p", state=UnitState.LACKING, lacks="a.b", without="none"),
    ]
    pages = {"decode:1": msgspec.to_builtins(units), "sim:1": []}

    class Asked:
        def __init__(self, metrics: str, **_: Any) -> None:
            self._metrics = metrics

        def get(self, path: str) -> Any:
            assert path == "/debug/units"
            if self._metrics not in pages:
                raise ApiError("Not Found", status=404)
            return pages[self._metrics]

    monkeypatch.setattr(doctor, "Client", Asked)
    components = [
        ComponentStatus(name, status.READY, 1, 1.0, f"{name}:1", "")
        for name in ("decode", "sim", "router")
    ]
    monkeypatch.setattr(
        status, "of_stack", lambda _: StackStatus("http://here:1", "sglang", components)
    )
    noted = Finding("engine unit", "note", "decode: forms is lacking, for want of a.b", "none")
    assert of("engine unit") == [noted]
    (told,) = of("engine units")
    assert (told.level, told.said) == ("ok", "decode: 1 kept, 1 lacking: pages")
