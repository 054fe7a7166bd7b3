"""What a token costs the parser of a model's answer, by where in the answer it is.

Each token is four characters, and is pushed by itself. A figure is CPU time, the best of ten
rounds: of the parser alone, and of a chat's stream, by how much more its events cost than those of
a request whose answer is not taken apart.

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

from tandem.upstream.submission import SubmittedPrompt
from tandem.v1 import common_pb2, router_pb2
from tandem_answers.parsing.families import FAMILIES
from tandem_answers.parsing.parser import Parser
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.asked import Asked, Parsing
from tandem_frontend.openai.shapes import CHAT
from tandem_frontend.openai.thought import thought_of
from tandem_frontend.openai.tokenizer import ModelTokenizer
from tandem_frontend.openai.writers import EventWriter

MOST_HELD = FrontendConfig(model_path="m").max_call_characters
TEXT = "the model writes an answer about cooking pasta with tomatoes and basil, "
CODE = "if a < b and c[0] < d: print({1: [2]}) # <b> "
TOKENIZER = ModelTokenizer(Path(__file__).resolve().parents[1] / "model" / "tandem-tiny")
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
    print("| where the token is | µs a token | in a stream |\n| --- | --- | --- |")
    rows = []
    for case in CASES:
        more = _streamed(case, parsing(case)) - _streamed(case, None)
        row = {"where": case.name, "parser_us": _seconds(case) * 1e6, "stream_us": more * 1e6}
        rows.append(row)
        print("| {where} | {parser_us:.2f} | {stream_us:.2f} |".format(**row))
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=2))


def parsing(case: Case) -> Parsing:
    """What a request with reasoning and one tool asks for."""
    return Parsing(
        family=case.family,
        most_held=MOST_HELD,
        reasoning=True,
        thought=thought_of(
            FAMILIES[case.family].thinking,
            "<think>" if case.opened else "",
            options={},
            variables=(),
        ),
        tools={"f": {}},
    )


def _pieces(case: Case) -> list[str]:
    return [case.body[at : at + 4] for at in range(0, len(case.body), 4)]


def _streamed(case: Case, how: Parsing | None) -> float:
    """CPU time of a token's event; the end of the call is left out."""
    asked = _asked(how)
    rows = [(0, piece, (), (), 1) for piece in _pieces(case)]
    taken = []
    for _ in range(10):
        writer = EventWriter(CHAT, TOKENIZER, asked)
        writer.row((0, case.before, (), (), 1))
        began = time.process_time()
        for row in rows:
            writer.row(row)
        taken.append(time.process_time() - began)
    return min(taken) / len(rows)


def _asked(how: Parsing | None) -> Asked:
    """A streaming request of one choice."""
    return Asked(
        parsing=how,
        id="0" * 32,
        prompts=[SubmittedPrompt.of([1], max_tokens=1)],
        task=common_pb2.Task(trace_id="0" * 32, model="tandem-tiny", streaming=True),
        submit=router_pb2.Submit(n=1),
        withheld_reason="stop",
        timeout_seconds=1.0,
    )


def _seconds(case: Case) -> float:
    """CPU time of a token, with what it costs to end the call."""
    body = _pieces(case)
    taken = []
    for _ in range(10):
        parser = Parser(
            FAMILIES[case.family],
            reasoning=True,
            opened=case.opened,
            tools={"f": {}},
            most_held=MOST_HELD,
        )
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
