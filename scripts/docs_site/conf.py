"""Sphinx's settings for the site; docs_site starts Sphinx with them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml
from docs_site import navigation
from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

HERE = Path(__file__).resolve().parent


def _git(*words: str) -> str:
    command = ["git", "-C", str(navigation.ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _chart() -> dict[str, str]:
    text = (navigation.ROOT / "helm/tandem/Chart.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


# Pygments knows no HAProxy, and no colons in PromQL's names, which recording rules have.
lexers |= {"haproxy": TextLexer(), "promql": TextLexer()}

project = "Tandem"
release = version = _chart()["version"]
repository = _chart()["home"]
commit = _git("rev-parse", "HEAD")
html_title = f"Tandem {release}"
date = _git("log", "-1", "--format=%cs")
copyright = f"Tandem's authors. Version {release}, commit {commit[:12]} of {date}"

extensions = ["myst_parser", "docs_site.links", "docs_site.toctrees", "docs_site.searching"]
root_doc = navigation.INDEX.removesuffix(".md")
myst_heading_anchors = 6
myst_links_external_new_tab = False
highlight_language = "none"
python_display_short_literal_types = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_static_path = [str(HERE / "static")]
html_css_files = ["tandem.css"]
html_search_scorer = str(navigation.ROOT / "build" / "site" / "scorer.js")
html_show_sphinx = False
html_copy_source = True
html_sourcelink_suffix = ""
html_theme_options = {
    "source_edit_link": "",
    "top_of_page_buttons": [],
}
