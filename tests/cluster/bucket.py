"""A bucket of S3 with one folder of this pod's files, as far as a download of a model asks for it.

python bucket.py PORT BUCKET FOLDER PATH
"""

from __future__ import annotations

import hashlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

BUCKET, FOLDER, PATH = sys.argv[2], sys.argv[3], Path(sys.argv[4])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = urlsplit(self.path).path.rstrip("/")
        if path == f"/{BUCKET}":
            self.answer(200, listing())
            return
        content = (PATH / path.rpartition("/")[2]).read_bytes()
        first, last = map(int, self.headers["range"].removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        end = first + len(part) - 1
        self.answer(206, part, etag=etag(content), content_range=(first, end, len(content)))

    def answer(
        self,
        status: int,
        body: bytes,
        *,
        etag: str = "",
        content_range: tuple[int, int, int] | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if content_range is not None:
            first, end, size = content_range
            self.send_header("etag", etag)
            self.send_header("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.send_header("content-range", f"bytes {first}-{end}/{size}")
        self.end_headers()
        self.wfile.write(body)


def listing() -> bytes:
    entries = "".join(
        f"<Contents><Key>{FOLDER}/{file.name}</Key><Size>{file.stat().st_size}</Size>"
        f"<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>{etag(file.read_bytes())}</ETag></Contents>"
        for file in PATH.iterdir()
        if file.is_file()
    )
    return f"<ListBucketResult>{entries}</ListBucketResult>".encode()


def etag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()}"'


ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
