"""llms.txt, which lists the site's pages as Markdown for language models, and llms-full.txt, which
holds them: https://llmstxt.org
"""

from __future__ import annotations

from pathlib import Path

from docs_site import navigation


def write(source: Path, html: Path) -> None:
    """Write both, of the pages that Sphinx has read and copied to `_sources`."""
    listed, full = [], []
    for section in navigation.sections():
        listed.append(f"\n## {section.title}\n")
        for page in [*section.pages, *section.modules]:
            text = (source / page).read_text(encoding="utf-8")
            about = navigation.summary(text)
            line = f"- [{navigation.title(text)}](_sources/{page})"
            listed.append(f"{line}: {about}" if about else line)
            full.append(f"<!-- {page} -->\n\n{text}")
    readme = (navigation.ROOT / "README.md").read_text(encoding="utf-8")
    head = f"# Tandem\n\n> {navigation.summary(readme)}\n"
    (html / "llms.txt").write_text(head + "\n".join(listed) + "\n", encoding="utf-8")
    (html / "llms-full.txt").write_text("\n".join(full), encoding="utf-8")
