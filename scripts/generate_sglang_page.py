"""Write the tables of docs/engines/sglang.md: the engine's options, and what becomes of each of
SGLang's own arguments.

python scripts/generate_sglang_page.py
python scripts/generate_sglang_page.py --check     # exit 1 when the page is stale
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import engine_page

from tandem_sglang import options, server_arguments

PAGE = engine_page.PAGES / "sglang.md"


def page(text: str) -> str:
    """`text` with both tables made anew."""
    tables = {
        "the class Options": engine_page.options(options.Options),
        "server_arguments.py": _arguments(),
    }
    return engine_page.with_tables(text, "generate_sglang_page.py", tables)


def _arguments() -> Iterator[str]:
    owners: dict[str, list[str]] = {}
    for name, owner in server_arguments.OWNED.items():
        owners.setdefault(owner, []).append(name)
    yield from engine_page.arguments(
        (
            ("works", server_arguments.WORKS),
            ("passed on", server_arguments.PASSED),
            ("set by Tandem", owners),
            ("refused", server_arguments.REFUSED),
        )
    )
    for reason, values in server_arguments.REFUSED_VALUES.items():
        told = ", ".join(f"`{name}` `{value}`" for name, value in values)
        yield f"| refused | {reason} | {told} |\n"
    for companions, names in server_arguments.COMPANIONS.items():
        needed = " or ".join(f"`{name}`" for name in companions)
        told = ", ".join(f"`{name}`" for name in names)
        yield f"| refused alone | it needs {needed} beside it | {told} |\n"


if __name__ == "__main__":
    sys.exit(engine_page.write(PAGE, page))
