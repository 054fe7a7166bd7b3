"""What a token costs the parser of a model's answer, by where in the answer it is.

Each token is four characters, and is pushed by itself. A figure is CPU time, the best of ten
rounds.

    python benchmarks/parsers.py
    python benchmarks/parsers.py --json out.json
"""

from __future__ import annotations

import argparse
import json
import time
import timeit
from pathlib import Path
from typing import NamedTuple

import machine

from frontend.openai.parsing.families import FAMILIES
from frontend.openai.parsing.parser import Parser

TEXT = "the model writes an answer about cooking pasta with tomatoes and basil, "
CODE = "if a < b and c[0] < d: print({1: [2]}) # <b> "
STEP = '{"at": "Zürich \\"HB\\"", "minutes": 12.5, "by": ["train", "tram"], "late": false}'


class Case(NamedTuple):
    """A long answer: what is measured is `body`, after `before` has been pushed."""

    name: str
    family: str
    before: str
    body: str
    after: str = ""
    opened: bool = False


CASES = (
    Case("content, prose", "qwen3", "Well, ", TEXT * 200),
    Case("content, code with `<` and `[`", "qwen3", "Well, ", CODE * 300),
    Case("reasoning", "qwen3", "Well, ", TEXT * 200, opened=True),
    Case(
        "arguments in JSON",
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"steps": [',
        ", ".join([STEP] * 150),
        "]}}</tool_call>",
    ),
    Case(
        "arguments as XML",
        "qwen3_coder",
        "<tool_call>\n<function=f>\n",
        "<parameter=note>\nThe train to Bern leaves at noon.\n</parameter>\n" * 200,
        "</function></tool_call>",
    ),
    Case(
        "arguments as keys and values",
        "glm45",
        "<tool_call>f\n",
        "<arg_key>note</arg_key>\n<arg_value>The train to Bern leaves.</arg_value>\n" * 200,
        "</tool_call>",
    ),
    Case(
        "arguments in Python",
        "pythonic",
        "[f(steps=[",
        "{'at': 'Bern', 'minutes': 12.5, 'by': ['train'], 'late': False}, " * 200,
        "])]",
    ),
)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--json", type=Path, help="write the figures to this file")
    asked = options.parse_args()
    print("| where the token is | µs a token |\n| --- | --- |")
    rows = []
    for case in CASES:
        rows.append({"where": case.name, "us_per_token": _seconds(case) * 1e6})
        print("| {where} | {us_per_token:.2f} |".format(**rows[-1]))
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=2))


def _seconds(case: Case) -> float:
    """CPU time of a token, with what it costs to end the call."""
    body = [case.body[at : at + 4] for at in range(0, len(case.body), 4)]
    taken = []
    for _ in range(10):
        parser = Parser(FAMILIES[case.family], reasoning=True, opened=case.opened, tools={"f": {}})
        parser.push(case.before)
        pieces = [*body, case.after]
        taken.append(
            timeit.timeit(
                lambda: [parser.push(piece) for piece in pieces],  # noqa: B023 - called at once
                number=1,
                timer=time.process_time,
            )
        )
        if parser.broken or parser.calls != bool(case.after):
            raise SystemExit(f"{case.name}: the answer is not what it should be")
    return min(taken) / len(body)


if __name__ == "__main__":
    main()
