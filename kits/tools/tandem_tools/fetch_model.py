"""`tandem fetch-model`: a model's files into a folder, whole or not at all.

An init container or a preload Job runs it. It may run again, run twice at once, and be killed: a
folder that holds the model costs a look, and a worker never sees half a model as whole.
"""

from __future__ import annotations

import argparse
import errno
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.errors import ConfigError
from tandem_tools.model_bucket import SCHEMES, Bucket
from tandem_tools.model_folder import FetchError, Marker, ModelFolder, ModelSource
from tandem_tools.model_hub import Hub
from tandem_tools.model_sources import Folder, wanted

TELL_SECONDS = 0.5
_REPOSITORY = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add(
        "uri URI",
        help="hf://organisation/name, s3://bucket/folder, gs://bucket/folder, or file:///folder.",
    )
    add("--to DIR", Path, required=True, help="Folder to fetch the model into.")
    add("--revision", default="", help="Branch, tag or commit of a hub. [its main branch]")
    add(
        "--only-tokenizer",
        action="store_true",
        help="Fetch no weights: a frontend and the sim engine need none.",
    )
    add("--lora", action="store_true", help="Fetch a LoRA adapter in PEFT's layout.")
    add(
        "--wait SECONDS",
        float,
        default=3600.0,
        help="How long to wait while another process fetches into the folder. [%(default)s]",
    )


def fetch_model(arguments: argparse.Namespace, console: Console) -> int:
    """Raises ConfigError for an address that is none."""
    source = ModelSource(
        arguments.uri, arguments.revision, arguments.only_tokenizer, arguments.lora
    )
    folder = ModelFolder(arguments.to)
    try:
        origin = _origin(source, folder)
        _fetch(source, origin, folder, console, wait_seconds=arguments.wait)
    except FetchError as error:
        console.failed(str(error))
        return 1
    except OSError as error:
        console.failed(_refused(folder.path, error))
        return 1
    return 0


def _fetch(
    source: ModelSource,
    origin: Hub | Folder | Bucket,
    folder: ModelFolder,
    console: Console,
    *,
    wait_seconds: float,
) -> None:
    if _is_there(source, folder, console):
        return

    def waiting(seconds: float) -> None:
        console.live(f"another process fetches into {folder.path}", seconds)

    with folder.locked(wait_seconds=wait_seconds, waiting=waiting):
        # The one we waited for may have fetched it.
        if _is_there(source, folder, console):
            return
        began = time.monotonic()
        listing = origin.listing()
        names = wanted(listing.files, only_tokenizer=source.only_tokenizer, adapter=source.lora)
        files = {name: listing.files[name] for name in names}
        missing = folder.check_space(files)
        console.line(f"fetching {source}: {_size(files)}")
        with _progress(folder, missing, console):
            origin.bring(names, listing.commit, folder)
        marker = Marker(source, listing.commit, files)
        folder.finish(marker)
    console.done(f"{folder.path} holds {source}", time.monotonic() - began)
    console.result({"folder": folder.path, "fetched": True, **asdict(marker)})


@contextmanager
def _progress(folder: ModelFolder, missing: int, console: Console) -> Iterator[None]:
    """Show meanwhile how much of what is missing has come."""
    began, before, ended = time.monotonic(), folder.written(), threading.Event()

    def tell() -> None:
        while not ended.wait(TELL_SECONDS):
            share = max(0.0, (folder.written() - before) / missing)
            console.live("fetching", time.monotonic() - began, share=min(1.0, share))

    if not missing:
        yield
        return
    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    try:
        yield
    finally:
        ended.set()
        telling.join()
        console.clear()


def _is_there(source: ModelSource, folder: ModelFolder, console: Console) -> bool:
    marker = folder.holds(source)
    if marker is None:
        return False
    commit = f" at commit {marker.commit}" if marker.commit else ""
    console.done(f"{folder.path} holds {source}{commit} already: {_size(marker.files)}")
    console.result({"folder": folder.path, "fetched": False, **asdict(marker)})
    return True


def _origin(source: ModelSource, folder: ModelFolder) -> Hub | Folder | Bucket:
    parts = urlsplit(source.uri)
    if parts.scheme == "hf" and _REPOSITORY.fullmatch(parts.netloc + parts.path):
        return Hub(parts.netloc + parts.path, source.revision, folder)
    if parts.scheme == "file" and not parts.netloc and parts.path and not source.revision:
        return Folder(Path(unquote(parts.path)))
    if parts.scheme in SCHEMES and parts.netloc and parts.path.strip("/") and not source.revision:
        return Bucket(source.uri)
    raise ConfigError(
        f"{source}: write it hf://organisation/name, or s3://bucket/folder, gs://bucket/folder or"
        " file:///folder without a revision"
    )


def _refused(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"{path} is full: use a larger volume and run the command again;"
            " the bytes that have come are kept"
        )
    return f"cannot write to {path}: {error.strerror or type(error).__name__}"


def _size(files: Mapping[str, int]) -> str:
    return f"{len(files)} files, {sum(files.values()) / 1e9:.2f} GB"


COMMAND = Command(
    add_arguments, fetch_model, example="tandem fetch-model hf://Qwen/Qwen3-8B --to models/qwen3-8b"
)
