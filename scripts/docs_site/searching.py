"""The site's search answers the questions of the index page. Sphinx's search shows pages that hold
every word of what was typed, stop words left out: so the words of a question are keywords of the
page that answers, and scorer.js shows that page first.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote_plus

from docs_site import navigation
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

BROWSER_SECONDS = 120
SHOWN = 3
"""The page that answers is among so many of the first results."""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _add_keywords)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _add_keywords(app: Sphinx, docname: str, source: list[str]) -> None:
    asked = [each for each, page in navigation.questions() if page == f"{docname}.md"]
    if asked:
        words = ", ".join(re.findall(r"\w+", " ".join(asked).lower()))
        source[0] = f'---\nmyst:\n  html_meta:\n    keywords: "{words}"\n---\n{source[0]}'


def write_scorer(path: Path) -> None:
    """scorer.js with the questions that it ranks by."""
    answers = [[page.removesuffix(".md"), each] for each, page in navigation.questions()]
    ranking = Path(__file__).with_name("scorer.js").read_text(encoding="utf-8")
    path.write_text(f"const ANSWERS = {json.dumps(answers)};\n{ranking}", encoding="utf-8")


def unfound(html: Path) -> list[str]:
    """Questions whose page the search does not find, a line for each."""
    text = (html / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    language = SearchEnglish({})
    wrong = []
    for question, page in navigation.questions():
        number = index["docnames"].index(page.removesuffix(".md"))
        words = set(re.findall(r"\w+", question.lower())) - set(language.stopwords)
        lacking = sorted(each for each in words if number not in _pages(index, language.stem(each)))
        if lacking:
            wrong.append(f"a search for {question!r} does not find {page}: no {', '.join(lacking)}")
    return wrong


def _pages(index: dict[str, dict[str, int | list[int]]], word: str) -> Iterator[int]:
    for kind in ("terms", "titleterms"):
        found = index[kind].get(word, [])
        yield from [found] if isinstance(found, int) else found


def not_shown_first(html: Path) -> list[str]:
    """Questions whose page is not among the first results in Chromium, a line for each."""
    set_up = navigation.ROOT / "scripts" / "set_up_chromium.sh"
    chromium = subprocess.run([set_up], capture_output=True, text=True, check=True).stdout.strip()
    wrong = []
    for question, page in navigation.questions():
        shown = _results(chromium, html, question)[:SHOWN]
        if page.removesuffix(".md") + ".html" not in shown:
            wrong.append(f"a search for {question!r} shows {', '.join(shown)} before {page}")
    return wrong


def _results(chromium: str, html: Path, typed: str) -> list[str]:
    """The pages that the search shows for a text, best first."""
    address = f"file://{html}/search.html?q={quote_plus(typed)}"
    switches = "--headless --no-sandbox --disable-gpu --virtual-time-budget=20000 --dump-dom"
    dumped = subprocess.run(
        [chromium, *switches.split(), address],
        capture_output=True,
        text=True,
        check=True,
        timeout=BROWSER_SECONDS,
    ).stdout
    links = re.findall(
        r'<li[^>]*>\s*<a href="([^"?#]+)', dumped.partition('id="search-results"')[2]
    )
    return list(dict.fromkeys(links))
