"""The site's navigation from docs/navigation.toml: tables of contents, which Sphinx reads at the
end of the index page, and the tree beside each page, whose sections open and close.
"""

from __future__ import annotations

from html import escape
from typing import Any

from docs_site import navigation
from sphinx.application import Sphinx

_CURRENT = " current current-page"
_SWITCH = (
    '<input class="toctree-checkbox" id="{name}" name="{name}" type="checkbox" role="switch"'
    ' aria-label="Pages about: {title}"{checked}>'
    '<label for="{name}"><span class="icon"><svg><use href="#svg-arrow-right"></use></svg></span>'
    "</label>"
)
"""Opens and closes a section of the tree, as Furo's styles have it."""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _add_tables)
    # Around Furo's own: it parses the whole tree again for each page, half of a build's time.
    app.connect("html-page-context", _leave_out_tree, priority=400)
    app.connect("html-page-context", _set_tree, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _add_tables(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == app.config.root_doc:
        tables = [
            "\n".join(["```{toctree}", ":hidden:", *(f"/{each}" for each in documents), "```"])
            for section in navigation.sections()
            if (documents := [each for each in _documents(section) if each != docname])
        ]
        source[0] += "\n\n" + "\n\n".join(tables) + "\n"


def _documents(section: navigation.Section) -> list[str]:
    return [page.removesuffix(".md") for page in [*section.pages, *section.modules]]


def _leave_out_tree(
    app: Sphinx, docname: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    context["toctree"] = lambda **_: ""


def _set_tree(
    app: Sphinx, docname: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    path_to = context["pathto"]

    def entry(level: int, document: str, text: str, marks: str = "", inner: str = "") -> str:
        link = f'<a class="reference internal" href="{path_to(document)}">{escape(text)}</a>'
        return f'<li class="toctree-l{level}{marks}">{link}{inner}</li>'

    found = []
    for number, section in enumerate(navigation.sections()):
        documents = _documents(section)
        pages = "".join(
            entry(2, each, app.env.titles[each].astext(), _CURRENT * (each == docname))
            for each in documents
        )
        here = docname in documents
        inner = _SWITCH.format(
            name=f"section-{number}", title=section.title, checked=" checked" * here
        )
        marks = " has-children" + " current" * here
        found.append(entry(1, documents[0], section.title, marks, f"{inner}<ul>{pages}</ul>"))
    context["furo_navigation_tree"] = f"<ul>{''.join(found)}</ul>"
