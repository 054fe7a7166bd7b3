"""`/playground` is served where it is asked for, and its page lets nothing else in. What it does in
a browser is tried by tests/clients/node/playground.test.mjs.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from harness import Start, error_of, say_hello
from hatchling.builders.wheel import WheelBuilder
from one_case import one_case

from tandem_frontend import playground

ROOT = Path(__file__).resolve().parents[3]
SOURCES = Path(str(playground.__file__)).parent
PARTS = sorted(playground.files())
MARKUP = r"innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|createContextualFragment"
CODE = r"\beval\b|\bFunction\(|srcdoc|javascript:|setAttribute\(.on"
KEEPING = r"localStorage|sessionStorage|indexedDB|document\.cookie|caches\.|pushState|serviceWorker"
POLICY = [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
]
ELSEWHERE = r"https?://(?!www\.w3\.org/2000/svg)|//cdn|@import"


@pytest.mark.promise("S6-370")
async def test_there_is_no_page_unless_it_is_asked_for(start: Start) -> None:
    frontend = await start(say_hello)
    for path in PARTS:
        assert error_of(await frontend.http.get(path)) == (404, "not_found", None)


@pytest.mark.promise("S6-370")
async def test_each_part_of_the_page_is_served_without_a_key_and_lets_nothing_else_in(
    start: Start,
) -> None:
    frontend = await start(say_hello, playground=True, api_keys=("sesame",))
    for path in PARTS:
        response = await frontend.http.get(path, headers={"authorization": ""})
        assert response.status_code == 200
        source = SOURCES / (path.partition("playground/")[2] or "page.html")
        assert response.content == source.read_bytes()
        assert response.headers["content-security-policy"].split("; ") == POLICY
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["cache-control"] == "no-cache"
        head = await frontend.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(response.content))
        posted = await frontend.http.post(path, json={})
        assert error_of(posted) == (405, "method_not_allowed", None)


async def test_each_part_is_of_the_kind_that_browsers_take(start: Start) -> None:
    frontend = await start(say_hello, playground=True)
    page = await frontend.http.get("/playground")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {"playground/style.css", "playground/page.js", "playground/icon.svg"} <= set(named)
    kinds = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    modules = [f"playground/{path.name}" for path in SOURCES.glob("*.js")]
    for part in {*named, *modules}:
        response = await frontend.http.get(f"/{part}")
        assert response.headers["content-type"].startswith(kinds[part.rpartition(".")[2]])
    for path in ("/playground/", "/playground/page.html", "/playground/__init__.py"):
        assert (await frontend.http.get(path)).status_code == 404


@pytest.mark.promise("S6-370")
async def test_a_local_server_shows_the_page_to_local_names_alone(start: Start) -> None:
    frontend = await start(say_hello, playground=True, allowed_hosts=())
    response = await frontend.http.get("/playground", headers={"host": "localhost:8000"})
    assert response.status_code == 200
    for path in PARTS:
        response = await frontend.http.get(path, headers={"host": "evil.example"})
        assert error_of(response) == (403, "host_not_allowed", None)


@pytest.mark.promise("S6-371")
@one_case("path", sorted(SOURCES.glob("*.*[!y]")), ids=lambda path: path.name)
def test_the_page_writes_no_markup_runs_no_text_keeps_nothing_and_names_no_other_server(
    path: Path,
) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(f"{MARKUP}|{CODE}|{KEEPING}|{ELSEWHERE}", text) == []
    if path.suffix == ".html":
        assert re.findall(r"<script(?![^>]* src=)|<style| style=| on\w+=|<form", text) == []


def test_the_wheel_holds_the_page(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    names = set(zipfile.ZipFile(wheel).namelist())
    parts = {
        f"tandem_frontend/playground/{each.name}" for each in SOURCES.iterdir() if each.is_file()
    }
    assert len(parts) > len(PARTS)
    assert parts <= names
