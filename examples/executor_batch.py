"""Answer the prompts of a JSONL file through the Executor API, and go on where it was interrupted:

    python examples/executor_batch.py 127.0.0.1:7000 prompts.jsonl answers.jsonl

A line of the first file is `{"id": "a", "token_ids": [1, 2, 3]}`, one of the second
`{"id": "a", "token_ids": [4, 5], "finish_reason": "LENGTH"}` or `{"id": "a", "error": "..."}`.
Answers are appended as they come, in any order. Prompts that have an answer already are left out;
those that an error ended are asked again the next time. No more than `AT_ONCE` prompts are in
memory, however many there are.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandem_executor import Executor, OutputConfig, Request, Response

AT_ONCE = 1000
MAX_TOKENS = 16


def answered(answers: Path) -> set[str]:
    """The ids that have an answer. The line at which an interruption cut the file is no answer."""
    found = set()
    if answers.exists():
        whole, _, cut = answers.read_bytes().rpartition(b"\n")
        if cut:
            answers.write_bytes(whole + b"\n" if whole else b"")
        for line in whole.splitlines():
            answer = json.loads(line)
            if "error" not in answer:
                found.add(answer["id"])
    return found


def open_prompts(prompts: Path, done: set[str]) -> Iterator[dict[str, Any]]:
    """The prompts that have no answer yet, one at a time."""
    with prompts.open(encoding="utf-8") as lines:
        for line in lines:
            prompt = json.loads(line)
            if prompt["id"] not in done:
                yield prompt


def answer_of(response: Response) -> dict[str, Any]:
    """What is written of a response."""
    if response.has_error():
        return {"error": response.error_msg}
    result = response.result
    reason = result.finish_reasons[0].name
    return {"token_ids": result.output_token_ids[0], "finish_reason": reason}


def main(router: str, prompts: Path, answers: Path) -> None:
    """Answer all prompts that have no answer yet."""
    done = answered(answers)
    count = len(done)
    waiting = open_prompts(prompts, done)
    ids: dict[int, str] = {}
    with Executor(router) as executor, answers.open("a", encoding="utf-8") as written:
        while True:
            fresh = list(itertools.islice(waiting, AT_ONCE - len(ids)))
            requests = [
                Request(
                    prompt["token_ids"],
                    max_tokens=MAX_TOKENS,
                    output_config=OutputConfig(exclude_input_from_output=True),
                )
                for prompt in fresh
            ]
            given = executor.enqueue_requests(requests)
            ids.update(zip(given, (prompt["id"] for prompt in fresh), strict=True))
            if not ids:
                break
            for response in executor.await_responses():
                answer = {"id": ids.pop(response.request_id)} | answer_of(response)
                written.write(json.dumps(answer) + "\n")
                count += 1
            print(f"\r{count} answered", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
