"""`python -m monitoring [--check]`: see the package's text."""

from __future__ import annotations

import argparse
import sys

from monitoring.generate import OUTPUT, files


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m monitoring", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    options = parser.parse_args()
    stale = 0
    for path, text in files().items():
        current = path.read_text(encoding="utf-8") if path.exists() else None
        if current == text:
            continue
        if options.check:
            sys.stderr.write(f"{path.relative_to(OUTPUT)} is stale: run `make monitoring`\n")
            stale = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
