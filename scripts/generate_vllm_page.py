"""Write the tables of docs/engines/vllm.md: the engine's options, and what becomes of each of
vLLM's own arguments.

python scripts/generate_vllm_page.py
python scripts/generate_vllm_page.py --check     # exit 1 when the page is stale
"""

from __future__ import annotations

import sys

import engine_page

from tandem_vllm import engine_arguments, options

PAGE = engine_page.PAGES / "vllm.md"


def page(text: str) -> str:
    """`text` with both tables made anew."""
    fates = (
        ("passed on", engine_arguments.PASSED),
        ("set by Tandem", engine_arguments.OWNED),
        ("refused", engine_arguments.REFUSED),
    )
    tables = {
        "the class Options": engine_page.options(options.Options),
        "engine_arguments.py": engine_page.arguments(fates),
    }
    return engine_page.with_tables(text, "generate_vllm_page.py", tables)


if __name__ == "__main__":
    sys.exit(engine_page.write(PAGE, page))
