"""`tandem fetch-model`, against folders and a hub that speaks the part of Hugging Face's protocol
that the library asks for: a model's info, its tree, and HEAD and GET of /resolve/.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from authority import Authority
from local_servers import FILES, SECONDS, SERVED, content, fetched, fetching, serving, take

from tandem.cli import main
from tandem.cli.console import Console
from tandem_tools import fetch_model
from tandem_tools.model_folder import LOCK, MARKER, FetchError, ModelFolder, ModelSource
from tandem_tools.model_sources import wanted

COMMIT = "1f2e3d4c5b6a79880f1e2d3c4b5a69788f0e1d2c"
REPOSITORY = "acme/tiny"


class FakeHub(ThreadingHTTPServer):
    """One repository. `got` lists the files that were sent whole."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(FILES)
        self.token = ""
        """Asked for, where it is set."""
        self.gated = False
        self.failures: dict[str, int] = {}
        """File -> how many more GETs of it answer 503."""
        self.broken: dict[str, int] = {}
        """File -> how many more GETs of it end in the middle."""
        self.got: list[str] = []
        self.held: dict[str, threading.Event] = {}
        """File -> its content is sent when this is set."""
        self.begun = threading.Event()
        """A file that is held was asked for."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def _serve(self, *, body: bool) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        if hub.token and self.headers.get("authorization") != f"Bearer {hub.token}":
            self._refuse(401, "GatedRepo" if hub.gated else "RepoNotFound")
        elif path.startswith(f"/api/models/{REPOSITORY}"):
            self._info(path)
        elif path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/"):
            self._file(path.rpartition("/")[2], body=body)
        else:
            self._refuse(404, "RepoNotFound")

    def _info(self, path: str) -> None:
        files = self.server.files.items()
        if path == f"/api/models/{REPOSITORY}/tree/{COMMIT}":
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": _digest(content)}
                for name, content in files
            ]
            self._answer(json.dumps(tree).encode(), {"content-type": "application/json"})
        elif path.rpartition("/revision/")[2] in (f"/api/models/{REPOSITORY}", COMMIT, "main"):
            siblings = [
                {"rfilename": name, "size": len(content), "blobId": _digest(content)}
                for name, content in files
            ]
            info = {"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}
            self._answer(json.dumps(info).encode(), {"content-type": "application/json"})
        else:
            self._refuse(404, "RevisionNotFound")

    def _file(self, name: str, *, body: bool) -> None:
        hub, content = self.server, self.server.files[name]
        headers = {"etag": f'"{_digest(content)}"', "x-repo-commit": COMMIT}
        if not body:
            self._answer(b"", headers, length=len(content))
        elif take(hub.failures, name):
            self._refuse(503, "")
        elif take(hub.broken, name):
            self._answer(content[: len(content) // 2], headers, length=len(content))
            self.close_connection = True
        else:
            if held := hub.held.get(name):
                hub.begun.set()
                held.wait(SECONDS)
            self._answer(content, headers)
            hub.got.append(name)

    def _answer(self, body: bytes, headers: dict[str, str], *, length: int | None = None) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        if code:
            self.send_header("x-error-code", code)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    with serving(hub):
        yield hub
        for event in hub.held.values():
            event.set()


def command(hub: FakeHub, to: Path, *more: str, **variables: str) -> subprocess.Popen[str]:
    return fetching(f"hf://{REPOSITORY}", to, *more, **{"HF_ENDPOINT": hub.url, **variables})


def fetch(hub: FakeHub, to: Path, *more: str, **variables: str) -> tuple[int, str]:
    return fetched(f"hf://{REPOSITORY}", to, *more, **{"HF_ENDPOINT": hub.url, **variables})


class Proxy(ThreadingHTTPServer):
    """Leads every CONNECT to one hub. `asked` lists where they meant to go."""

    daemon_threads = True

    def __init__(self, hub: FakeHub) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.hub = hub
        self.asked: list[str] = []


class _Tunnel(BaseHTTPRequestHandler):
    server: Proxy

    def do_CONNECT(self) -> None:
        self.server.asked.append(self.path)
        with socket.create_connection(self.server.hub.server_address[:2]) as far:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pour, args=(far, self.connection))
            back.start()
            _pour(self.connection, far)
            back.join(SECONDS)

    def log_message(self, format: str, *args: Any) -> None: ...


def _pour(source: socket.socket, into: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            into.sendall(piece)
        into.shutdown(socket.SHUT_WR)


def test_a_model_of_a_hub_comes_whole_and_once_and_leaves_no_cache(
    hub: FakeHub, tmp_path: Path
) -> None:
    status, output = fetch(hub, tmp_path / "model")
    assert status == 0, output
    assert content(tmp_path / "model") == {name: FILES[name] for name in SERVED}
    hidden = {each.name for each in (tmp_path / "model").iterdir()} - set(SERVED)
    assert hidden == {MARKER, LOCK}
    marker = ModelFolder(tmp_path / "model").holds(ModelSource(f"hf://{REPOSITORY}"))
    assert marker is not None
    assert marker.commit == COMMIT
    hub.token = "the hub answers nobody any more"
    status, output = fetch(hub, tmp_path / "model")
    assert (status, "already" in output) == (0, True), output
    status, output = fetch(hub, tmp_path / "model", "--revision", COMMIT)
    assert (status, "another folder" in output) == (1, True), output


@pytest.mark.promise("S5-314")
def test_a_download_goes_through_a_proxy_and_trusts_an_authority_of_ones_own(
    hub: FakeHub, tmp_path: Path
) -> None:
    files = Authority(tmp_path / "own").issue("hub.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    hub.socket = context.wrap_socket(hub.socket, server_side=True)
    proxy = Proxy(hub)
    with serving(proxy):
        variables = {
            "HF_ENDPOINT": "https://hub.test",
            "HTTPS_PROXY": f"http://127.0.0.1:{proxy.server_port}",
            "SSL_CERT_FILE": str(files.ca),
        }
        status, output = fetch(hub, tmp_path / "model", **variables)
    assert status == 0, output
    assert content(tmp_path / "model") == {name: FILES[name] for name in SERVED}
    assert set(proxy.asked) == {"hub.test:443"}


def test_only_the_tokenizer_comes_without_weights_and_is_completed_later(
    hub: FakeHub, tmp_path: Path
) -> None:
    assert fetch(hub, tmp_path, "--only-tokenizer")[0] == 0
    assert sorted(content(tmp_path)) == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    assert fetch(hub, tmp_path)[0] == 0
    assert content(tmp_path) == {name: FILES[name] for name in SERVED}


def test_failures_that_pass_are_tried_again_and_whole_files_are_kept(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.broken["model.safetensors"] = 1
    hub.failures["tokenizer.json"] = 1
    status, output = fetch(hub, tmp_path)
    assert status == 0, output
    assert content(tmp_path)["model.safetensors"] == FILES["model.safetensors"]
    assert sorted(hub.got) == SERVED


@pytest.mark.promise("S5-132", "S6-180")
def test_a_killed_fetch_is_never_taken_for_whole_and_the_next_one_goes_on(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.held["model.safetensors"] = threading.Event()
    with command(hub, tmp_path) as process:
        assert hub.begun.wait(SECONDS)
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
    assert not (tmp_path / MARKER).exists()
    hub.held.pop("model.safetensors").set()
    status, output = fetch(hub, tmp_path)
    assert status == 0, output
    assert content(tmp_path) == {name: FILES[name] for name in SERVED}


def test_two_processes_at_once_fetch_each_file_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.held["model.safetensors"] = threading.Event()
    with command(hub, tmp_path) as first:
        assert hub.begun.wait(SECONDS)
        with command(hub, tmp_path) as second:
            assert second.stdout is not None
            assert "another process" in second.stdout.readline()
            hub.held["model.safetensors"].set()
            assert first.wait(SECONDS) == second.wait(SECONDS) == 0
            assert "already" in second.stdout.read()
    assert sorted(hub.got) == SERVED


def test_waiting_for_another_process_is_bounded(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "to").mkdir()
    with (tmp_path / "to" / LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        arguments = ["fetch-model", source.as_uri(), "--to", str(tmp_path / "to"), "--wait", "0"]
        assert main(arguments) == 1


@pytest.mark.parametrize(("gated", "said"), [(False, "no model acme/tiny"), (True, "is gated")])
def test_what_the_hub_refuses_is_told_with_its_mend_and_without_the_token(
    hub: FakeHub, tmp_path: Path, gated: bool, said: str
) -> None:
    hub.token, hub.gated = "hf_right", gated
    status, output = fetch(hub, tmp_path, HF_TOKEN="hf_wrong")
    assert status == 1
    assert said in output
    assert "HF_TOKEN" in output
    assert "hf_wrong" not in output
    assert fetch(hub, tmp_path, HF_TOKEN="hf_right")[0] == 0


def test_an_unknown_revision_is_named(hub: FakeHub, tmp_path: Path) -> None:
    status, output = fetch(hub, tmp_path, "--revision", "v9")
    assert (status, "no revision v9" in output) == (1, True), output


def test_a_model_that_does_not_fit_is_refused_before_anything_comes(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="larger volume"):
        ModelFolder(tmp_path).check_space({"model.safetensors": 1 << 60})


def test_a_folder_is_a_source_too(tmp_path: Path) -> None:
    source, to = tmp_path / "a model", tmp_path / "to"
    source.mkdir()
    for name in SERVED:
        (source / name).write_bytes(FILES[name])
    assert main(["fetch-model", source.as_uri(), "--to", str(to)]) == 0
    assert content(to) == {name: FILES[name] for name in SERVED}
    (to / "model.safetensors").write_bytes(b"cut")
    assert main(["fetch-model", source.as_uri(), "--to", str(to)]) == 0
    assert content(to) == {name: FILES[name] for name in SERVED}


def test_what_is_no_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch-model", tmp_path.as_uri(), "--to", str(tmp_path / "to")]) == 1
    assert "no config.json, tokenizer.json" in capsys.readouterr().out
    with pytest.raises(FetchError, match="no weights"):
        wanted(["config.json", "tokenizer.json"], only_tokenizer=False)


@pytest.mark.parametrize("uri", ["acme/tiny", "hf://", "hf://a/b/c", "s4://a/b", "hf://../etc"])
def test_an_address_of_no_known_kind_is_refused(uri: str, tmp_path: Path) -> None:
    assert main(["fetch-model", uri, "--to", str(tmp_path / "to")]) == 2
    assert not (tmp_path / "to").exists()


def test_a_volume_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    occupied = tmp_path / "a file"
    occupied.touch()
    assert main(["fetch-model", tmp_path.as_uri(), "--to", str(occupied)]) == 1
    assert "cannot" in capsys.readouterr().out


@pytest.mark.promise("S5-755")
def test_how_much_of_a_model_has_come_is_shown_while_it_comes(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"-" * 2**20)
    stream = io.StringIO()
    folder, console = ModelFolder(tmp_path), Console(stream, terminal=True)
    with fetch_model._progress(folder, 4 * 2**20, console):
        (tmp_path / "model.incomplete").write_bytes(b"-" * 2**20)
        deadline = time.monotonic() + 60
        while "fetching, 25%, about " not in stream.getvalue():
            assert time.monotonic() < deadline, stream.getvalue()
            time.sleep(0.05)
    assert stream.getvalue().endswith("\r\x1b[2K"), "nothing of the line stays"
    nowhere = io.StringIO()
    with fetch_model._progress(folder, 1, Console(nowhere, terminal=False)):
        pass
    assert nowhere.getvalue() == ""
