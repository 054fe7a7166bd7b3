"""Programs of Go that tests run, as tests/go/go.mod names them: each is built once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

MODULE: Final = Path(__file__).parents[1] / "go"
PACKAGES: Final = {
    "h2spec": "github.com/summerwind/h2spec/cmd/h2spec",
    "grpcurl": "github.com/fullstorydev/grpcurl/cmd/grpcurl",
    "go_end": ".",
}
BUILD_SECONDS: Final = 900


class UnavailableError(Exception):
    """A program cannot be had here."""


def binary(name: str) -> Path:
    """The program, built where it is not there yet. Raises UnavailableError."""
    package = PACKAGES[name]
    program = _cache() / f"{name}-{_digest(package)}"
    if program.exists():
        return program
    if (go := shutil.which("go")) is None:
        raise UnavailableError(f"{name} is built with Go, which is not here")
    program.parent.mkdir(parents=True, exist_ok=True)
    with program.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may build it at this moment
        if not program.exists():
            _build(go, package, program)
    return program


def _build(go: str, package: str, program: Path) -> None:
    """Without the optimizer and C, which make the first build take half as long again."""
    fresh = program.with_suffix(f".{os.getpid()}")
    flags = ("-trimpath", "-gcflags=all=-N -l", "-ldflags=-s -w", "-o", str(fresh))
    try:
        subprocess.run(
            (go, "build", *flags, package),
            cwd=MODULE,
            env=os.environ | {"CGO_ENABLED": "0"},
            check=True,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"{package} cannot be built: {error.stderr[-300:]}") from error
    fresh.replace(program)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem-ci" / "go"


def _digest(package: str) -> str:
    """Of what a program is built from."""
    files = [MODULE / "go.mod", MODULE / "go.sum"]
    if package == ".":
        files += sorted(MODULE.glob("*.go"))
    return hashlib.sha256(b"\0".join(each.read_bytes() for each in files)).hexdigest()[:12]
