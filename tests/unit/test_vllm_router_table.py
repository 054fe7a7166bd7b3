"""Tandem beside vLLM's own servers and router: what those are given, and the table. Nothing is
started here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(script: str) -> str:
    """What a program beside the benchmarks prints."""
    path = os.pathsep.join([str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_servers_are_given_what_workers_give_vllm_but_what_makes_tandem() -> None:
    said = run(
        "import json, pathlib, vllm_servers as servers;"
        "tiny = pathlib.Path('model/tandem-tiny');"
        "print(json.dumps([servers.flags(servers.server_values(role, ['dtype=float32'],"
        " model=tiny, max_sequences=64)) for role in servers.PHASES]))"
    )
    for kv_role, flags in zip(("kv_producer", "kv_consumer"), json.loads(said), strict=True):
        assert flags[flags.index("--dtype") + 1] == "float32"
        assert flags[flags.index("--max-num-seqs") + 1] == "64"
        assert {"--enforce-eager", "--no-enable-chunked-prefill"} <= set(flags)
        transfer = json.loads(flags[flags.index("--kv-transfer-config") + 1])
        assert (transfer["kv_connector"], transfer["kv_role"]) == ("NixlConnector", kv_role)
        assert "tandem" not in " ".join(flags).replace("tandem-tiny", "").replace(
            transfer["engine_id"], ""
        )
        assert not any("async-scheduling" in flag for flag in flags)


def test_the_table_has_medians_and_tandem_with_vllm_by_each_stack() -> None:
    said = run(
        "import vllm_router as b; from sglang_gateway_table import PARTS;"
        "row = lambda hops, engine: dict.fromkeys(PARTS, 0.0) | {'hops': hops, 'engine': engine};"
        "print(*b.table({8: {b.OURS: [row(30, 70), row(50, 50), row(900, 900)],"
        " b.THEIRS: [row(100, 100)]}}), sep='\\n')"
    )
    _title, heading, ours, theirs = said.splitlines()
    assert heading.split()[:2] == ["streams", "hops"]
    assert ours.split()[:4] == ["8", "Tandem,", "vLLM", "50.0"]
    assert ours.split()[-3:] == ["120.0", "1.00", "1.00"]
    assert theirs.split()[-3:] == ["200.0", "0.50", "0.60"]
