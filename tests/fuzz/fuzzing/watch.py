"""Runs a target in processes of its own, and notices those that crash or hang."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .found import Findings
from .progress import Current, Progress

RUN = Path(__file__).resolve().parents[1] / "run.py"
HANG_SECONDS = 30.0
_START_SECONDS = 120.0
_LOOK_SECONDS = 0.2
_OWN_FAILURE = 1
"""How Python ends over what nobody caught: whatever inputs raise is caught."""
_MOST_ENDS = 100
"""Crashes and hangs, after which a target is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done for one target."""

    name: str
    folder: Path
    seed: int
    until: int
    seconds: float
    guided: bool = False
    hang_seconds: float = HANG_SECONDS

    def command(self, seconds: float) -> list[str]:
        return [
            *(sys.executable, str(RUN), "--child", self.name, "--folder", str(self.folder)),
            *("--seed", str(self.seed), "--inputs", str(self.until), "--seconds", f"{seconds:g}"),
            *(["--guided"] if self.guided else []),
        ]


def carry_out(plan: Plan) -> Progress:
    """Until the inputs were given, the time is over, or it ends too often."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    findings = Findings(plan.folder, plan.name)
    began = time.monotonic()
    for _ in range(_MOST_ENDS):
        left = plan.seconds - (time.monotonic() - began)
        progress = Progress.load(plan.folder, plan.seed)
        if progress.done >= plan.until or left <= 0:
            break
        _run_one(plan, findings, left)
    return Progress.load(plan.folder, plan.seed)


def _run_one(plan: Plan, findings: Findings, seconds: float) -> None:
    """One process, to its end; what it did not survive is passed over by the next."""
    Progress.load(plan.folder, plan.seed).save(plan.folder)
    current = Current(plan.folder)
    current.set(Progress.load(plan.folder, plan.seed).done, b"")
    process = subprocess.Popen(plan.command(seconds))
    try:
        hung = _wait(process, current, plan.hang_seconds)
    finally:
        process.kill()
        process.wait()
    if process.returncode == 0:
        return
    number, data = current.get()
    if process.returncode == _OWN_FAILURE:
        raise RuntimeError(f"{plan.name}: the fuzzing itself failed, see above")
    if hung:
        findings.add("hang", f"an input takes more than {plan.hang_seconds:g} s: {number}", data)
    else:
        findings.add("crash", f"the process ended with {process.returncode}: {number}", data)
    progress = Progress.load(plan.folder, plan.seed)
    progress.done = number + 1
    progress.save(plan.folder)


def _wait(process: subprocess.Popen[bytes], current: Current, hang_seconds: float) -> bool:
    """Whether it stood still, though a CPU was there for it."""
    seen: tuple[int, bytes] = (-1, b"")
    since, patience = _awake(process.pid), _START_SECONDS
    while process.poll() is None:
        now = current.get()
        if now != seen:
            patience = hang_seconds if seen[0] >= 0 and now[1] else _START_SECONDS
            seen, since = now, _awake(process.pid)
        elif _awake(process.pid) - since > patience:
            return True
        try:
            process.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    return False


def table(rows: Sequence[tuple[str, Progress, Findings]]) -> str:
    """Markdown, a row a target."""
    lines = [
        "| target | inputs | a second | 5xx | faults | crashes | hangs | leaks | longest |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for name, progress, findings in rows:
        rate = progress.done / progress.seconds if progress.seconds else 0
        counts = [findings.count(kind) for kind in ("5xx", "fault", "crash", "hang", "leak")]
        found = " | ".join(map(str, counts))
        lines.append(
            f"| {name} | {progress.done:,} | {rate:,.0f} | {found} | {progress.longest_ms:.0f} ms |"
        )
    return "\n".join(lines)


def _awake(pid: int) -> float:
    """The time without what a process has waited for a CPU, in seconds: Linux counts that."""
    try:
        waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        waited = 0
    return time.monotonic() - waited / 1e9
