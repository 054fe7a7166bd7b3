"""Links of pages that leave the site: they work where the pages lie in the repository, and lead to
the repository's address from the site. Names of Python's own types lead nowhere.
"""

from __future__ import annotations

import builtins
import posixpath

from docs_site.navigation import ROOT
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("repository", "", "html")
    app.add_config_value("commit", "main", "html")
    app.connect("doctree-read", _lead_to_the_repository)
    app.connect("doctree-read", _leave_builtin_types)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _lead_to_the_repository(app: Sphinx, doctree: nodes.document) -> None:
    """A target that is neither a page nor a file of the repository stays, and fails the build."""
    folder = posixpath.dirname(app.env.docname)
    for node in list(doctree.findall(addnodes.pending_xref)):
        if node.get("reftype") != "myst" or node.get("refdomain"):
            continue
        path, _, anchor = node["reftarget"].partition("#")
        target = posixpath.normpath(posixpath.join(folder, path))
        if not path or target.startswith("..") or not (ROOT / target).exists():
            continue
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        address = f"{app.config.repository}/{kind}/{app.config.commit}/{target}"
        address += f"#{anchor}" if anchor else ""
        node.replace_self(nodes.reference("", "", *node.children, refuri=address))


def _leave_builtin_types(app: Sphinx, doctree: nodes.document) -> None:
    """Sphinx would take an attribute for the type of the same name: `bytes`."""
    for node in list(doctree.findall(addnodes.pending_xref)):
        if node.get("refdomain") == "py" and hasattr(builtins, node["reftarget"]):
            node.replace_self(node.children)
