"""Generate the Python of the wire from `proto/`, or check that the committed code is up to date.

The protos live in `proto/tandem/v1/`, so protoc's own path rule puts the result in `tandem/v1/`,
with imports that read `from tandem.v1 import ...`; nothing is rewritten afterwards.

    python scripts/generate_proto.py            # write tandem/v1/
    python scripts/generate_proto.py --check    # exit 1, with a diff, when tandem/v1/ is stale
"""

import argparse
import difflib
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
TOOLS = ("grpcio-tools", "mypy-protobuf")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="repository to write to (default: this one)"
    )
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    options = parser.parse_args()
    root: Path = options.root.resolve()
    return check(root) if options.check else write(root)


def write(root: Path) -> int:
    """Replace the generated files below `root`, leaving none of a proto that is gone."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(root, Path(scratch))
    for stale in committed(root).keys() - fresh.keys():
        (root / stale).unlink()
    for name, text in fresh.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    print(f"{len(fresh)} files written from {len(protos(root))} protos")
    return 0


def check(root: Path) -> int:
    """Print what differs between the committed code and a fresh generation."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(root, Path(scratch))
    present = committed(root)
    drifted = False
    for name in sorted(fresh.keys() | present.keys()):
        before, after = present.get(name, ""), fresh.get(name, "")
        if before != after:
            drifted = True
            lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
            diff = difflib.unified_diff(*lines, f"committed/{name}", f"fresh/{name}")
            sys.stdout.writelines(list(diff)[:60])
    if drifted:
        tools = ", ".join(f"{tool} {version(tool)}" for tool in TOOLS)
        print(f"\nThe generated code is not that of proto/ (with {tools}): run `make proto`.")
        return 1
    print(f"proto: {len(fresh)} generated files are up to date")
    return 0


def generate(root: Path, target: Path) -> dict[str, str]:
    """Run protoc over every proto and return its output by path relative to the root."""
    # Imported late: `--help` should work where the tools are not installed.
    import grpc_tools
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    # protoc looks for its plugins on PATH; those of this very interpreter are beside it.
    plugin_folder = Path(sys.executable).parent
    sources = protos(root)
    if not sources:
        sys.exit(f"no .proto file below {root / 'proto'}")
    status = protoc.main(
        [
            "protoc",
            f"-I{root / 'proto'}",
            f"-I{well_known}",
            f"--plugin=protoc-gen-mypy={plugin_folder / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={plugin_folder / 'protoc-gen-mypy_grpc'}",
            f"--python_out={target}",
            f"--grpc_python_out={target}",
            f"--mypy_out=quiet:{target}",
            f"--mypy_grpc_out=quiet:{target}",
            *(str(source.relative_to(root / "proto")) for source in sources),
        ]
    )
    if status != 0:
        sys.exit(f"protoc failed with status {status}")
    return {
        path.relative_to(target).as_posix(): path.read_text()
        for path in target.rglob("*")
        if path.is_file() and not is_empty(path)
    }


def is_empty(path: Path) -> bool:
    """Whether it is gRPC code of a proto without a service, which holds nothing to call."""
    return "_pb2_grpc." in path.name and "def add_" not in path.read_text()


def protos(root: Path) -> list[Path]:
    return sorted((root / "proto").rglob("*.proto"))


def committed(root: Path) -> dict[str, str]:
    """Generated files now below `tandem/`, by path relative to the root."""
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in (root / "tandem").rglob("*")
        if path.name.endswith(SUFFIXES)
    }


if __name__ == "__main__":
    sys.exit(main())
