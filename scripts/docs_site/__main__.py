"""Build the site into build/site/html: `make site`. A warning of Sphinx fails the build. With
--ask, Chromium asks the site's search the questions of the index page.

Sphinx reads build/site/source, where the pages of docs/navigation.toml lie as in the repository,
beside those of docstrings. Nothing else lies there, so a link to another file leads to the
repository.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from docs_site import llms, navigation, reference, searching
from sphinx.cmd.build import main as sphinx_build

HERE = Path(__file__).resolve().parent
OUT = navigation.ROOT / "build" / "site"
PICTURES = {".png", ".svg"}
ELSEWHERE = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/README.html">\n'


def main() -> int:
    began = time.monotonic()
    source, html = OUT / "source", OUT / "html"
    for folder in (source, html):
        shutil.rmtree(folder, ignore_errors=True)
    lay_out(source)
    searching.write_scorer(OUT / "scorer.js")
    failed = sphinx_build(
        [
            *("-W", "--keep-going", "-q", "-E", "-b", "html"),
            *("-d", str(OUT / "doctrees"), "-c", str(HERE), str(source), str(html)),
        ]
    )
    if failed:
        return failed
    (html / "index.html").write_text(ELSEWHERE, encoding="utf-8")
    llms.write(source, html)
    wrong = searching.unfound(html)
    if not wrong and "--ask" in sys.argv:
        wrong = searching.not_shown_first(html)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    pages = len(list(html.rglob("*.html")))
    size = sum(path.stat().st_size for path in html.rglob("*") if path.is_file())
    seconds = time.monotonic() - began
    print(f"{html}/index.html: {pages} pages, {size / 1e6:.1f} MB, {seconds:.0f} s")
    return 0


def lay_out(source: Path) -> None:
    """Copy each page and picture, and write the pages of docstrings. (Sphinx follows symbolic
    links, and would look for the pages beside them in the repository.)
    """
    modules = reference.Modules()
    for section in navigation.sections():
        for page in section.pages:
            _copy(source, page)
        for page, names in section.modules.items():
            written = source / page
            written.parent.mkdir(parents=True, exist_ok=True)
            title = f"API: {Path(page).stem}"
            written.write_text(modules.page(title, names), encoding="utf-8")
    for path in (navigation.ROOT / "docs").rglob("*"):
        if path.suffix in PICTURES:
            _copy(source, str(path.relative_to(navigation.ROOT)))


def _copy(source: Path, path: str) -> None:
    (source / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(navigation.ROOT / path, source / path)


if __name__ == "__main__":
    sys.exit(main())
