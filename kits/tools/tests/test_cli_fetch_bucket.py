"""`tandem fetch-model` from buckets, against a server that speaks the part of S3's protocol that
the library asks for: a listing, and GET with Range and If-Match. Google's storage speaks it too.
"""

from __future__ import annotations

import hashlib
import json
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import local_servers
import pytest
from authority import Authority
from local_servers import SERVED, content, fetched, serving, take

from tandem.cli import main
from tandem_tools.model_bucket import PART_BYTES
from tandem_tools.model_folder import MARKER

FOLDER = "acme/tiny"
FILES = local_servers.FILES | {"model.safetensors": b"w" * (PART_BYTES + 1000)}
KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret words", "AWS_REGION": "any"}


class FakeBucket(ThreadingHTTPServer):
    """The bucket `models`. `got` lists what was sent whole: file, first byte."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(FILES)
        self.refused = 0
        """Status of every answer, where it is set."""
        self.failures: dict[str, int] = {}
        """File -> how many more GETs of it answer 503."""
        self.broken: dict[str, int] = {}
        """File -> how many more GETs of it end in the middle."""
        self.changed = ""
        """A file that is another one once the listing is told."""
        self.got: list[tuple[str, int]] = []

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeBucket
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        bucket, url = self.server, urlsplit(self.path)
        name = unquote(url.path).removeprefix(f"/models/{FOLDER}/")
        if bucket.refused:
            self._answer(bucket.refused, b"")
        elif url.path.rstrip("/") == "/models":
            self._list(parse_qs(url.query)["prefix"][0])
        elif name not in bucket.files:
            self._answer(404, b"")
        else:
            self._file(name, bucket.files[name])

    def _list(self, prefix: str) -> None:
        found = [
            (f"{FOLDER}/{name}", content)
            for name, content in self.server.files.items()
            if "/" not in name and f"{FOLDER}/".startswith(prefix)
        ]
        entries = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(content)}</Size>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{_version(content)}</ETag></Contents>"
            for key, content in found
        )
        self._answer(200, f"<ListBucketResult>{entries}</ListBucketResult>".encode())
        if self.server.changed:
            self.server.files[self.server.changed] = b"another"

    def _file(self, name: str, content: bytes) -> None:
        bucket = self.server
        if self.headers.get("if-match") != _version(content):
            self._answer(412, b"")
            return
        first, last = self.headers["range"].removeprefix("bytes=").split("-")
        part = content[int(first) : int(last) + 1]
        if take(bucket.failures, name):
            self._answer(503, b"")
        elif take(bucket.broken, name):
            self._answer(206, part[: len(part) // 2], length=len(part), of=content, first=first)
            self.close_connection = True
        else:
            self._answer(206, part, of=content, first=first)
            bucket.got.append((name, int(first)))

    def _answer(
        self, status: int, body: bytes, *, length: int = -1, of: bytes = b"", first: str = "0"
    ) -> None:
        length = len(body) if length < 0 else length
        self.send_response(status)
        self.send_header("content-length", str(length))
        if of:
            self.send_header("etag", _version(of))
            self.send_header("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            last = int(first) + length - 1
            self.send_header("content-range", f"bytes {first}-{last}/{len(of)}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


def _version(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


@pytest.fixture
def bucket() -> Iterator[FakeBucket]:
    bucket = FakeBucket()
    with serving(bucket):
        yield bucket


def of_s3(bucket: FakeBucket, to: Path, *more: str) -> tuple[int, str]:
    own = {"AWS_ENDPOINT_URL": bucket.url, "AWS_ALLOW_HTTP": "true", **KEYS}
    return fetched(f"s3://models/{FOLDER}", to, *more, **own)


@pytest.mark.promise("S5-317")
def test_a_model_of_s3_comes_whole_and_is_not_fetched_again(
    bucket: FakeBucket, tmp_path: Path
) -> None:
    status, output = of_s3(bucket, tmp_path)
    assert status == 0, output
    assert content(tmp_path) == {name: FILES[name] for name in SERVED}
    assert "secret" not in output
    marker = json.loads((tmp_path / MARKER).read_text())
    assert marker["source"]["uri"] == f"s3://models/{FOLDER}"
    bucket.refused = 403
    assert of_s3(bucket, tmp_path)[0] == 0


@pytest.mark.promise("S5-317")
def test_a_model_of_googles_storage_comes_alike(bucket: FakeBucket, tmp_path: Path) -> None:
    key = {"gcs_base_url": bucket.url, "disable_oauth": True, "client_email": ""}
    key |= {"private_key": "", "private_key_id": ""}
    variables = {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key)}
    status, output = fetched(f"gs://models/{FOLDER}", tmp_path, **variables)
    assert status == 0, output
    assert content(tmp_path) == {name: FILES[name] for name in SERVED}


@pytest.mark.promise("S5-317")
def test_failures_that_pass_are_tried_again(bucket: FakeBucket, tmp_path: Path) -> None:
    bucket.failures["config.json"] = 2
    bucket.broken["model.safetensors"] = 2
    status, output = of_s3(bucket, tmp_path)
    assert status == 0, output
    assert content(tmp_path) == {name: FILES[name] for name in SERVED}


@pytest.mark.promise("S5-317")
def test_what_has_come_whole_stays_and_what_has_changed_since_comes_again(
    bucket: FakeBucket, tmp_path: Path
) -> None:
    bucket.changed = "tokenizer.json"
    status, output = of_s3(bucket, tmp_path)
    assert status == 1
    assert f"s3://models/{FOLDER} cannot be read" in output
    assert not (tmp_path / MARKER).exists()
    came = dict.fromkeys(name for name, _ in bucket.got)
    assert "model.safetensors" in came
    bucket.got.clear()
    bucket.changed = ""
    bucket.files["config.json"] = FILES["config.json"].upper()  # as long as it was
    assert of_s3(bucket, tmp_path)[0] == 0
    assert {name for name, _ in bucket.got} == {"config.json", "tokenizer.json"}
    assert content(tmp_path)["config.json"] == bucket.files["config.json"]


@pytest.mark.promise("S5-317")
@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_is_told_at_once_and_in_words(
    bucket: FakeBucket, tmp_path: Path, status: int
) -> None:
    bucket.refused = status
    exit_status, output = of_s3(bucket, tmp_path)
    assert exit_status == 1
    assert f"s3://models/{FOLDER} cannot be read: " in output
    assert f"{status} " in output
    assert "secret" not in output


@pytest.mark.promise("S5-314")
def test_an_authority_of_ones_own_is_trusted(bucket: FakeBucket, tmp_path: Path) -> None:
    files = Authority(tmp_path / "own").issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    bucket.socket = context.wrap_socket(bucket.socket, server_side=True)
    address = bucket.url.replace("http:", "https:")
    status, output = fetched(
        f"s3://models/{FOLDER}",
        tmp_path / "model",
        AWS_ENDPOINT_URL=address,
        SSL_CERT_FILE=str(files.ca),
        **KEYS,
    )
    assert status == 0, output


def test_authorities_that_cannot_be_read_are_told_in_words(tmp_path: Path) -> None:
    status, output = fetched(
        f"s3://models/{FOLDER}", tmp_path, SSL_CERT_FILE="/nonexistent", **KEYS
    )
    assert status == 1
    assert "cannot be read" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("uri", ["s3://", "s3://models", "gs://models/"])
def test_a_bucket_without_a_folder_is_refused(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch-model", uri, "--to", str(tmp_path / "to")]) == 2
    assert "s3://bucket/folder" in capsys.readouterr().err


def test_a_revision_of_a_bucket_is_refused(tmp_path: Path) -> None:
    asked = [f"s3://models/{FOLDER}", "--to", str(tmp_path / "to"), "--revision=main"]
    assert main(["fetch-model", *asked]) == 2
