"""A frontend whose model follows instructions to the letter: the server of the client tests.

run.py starts it with the project's own Python, beside the parts of the frontend's unit tests. It
says its port on standard output, and ends with its standard input:

    PYTHONPATH=.:tests/unit/frontend python tests/clients/scripted.py

A tool is called once, with arguments made of its schema; its result is then repeated. An answer of
a form is made of its schema too. All else is answered by a greeting, or, where the prompt says
`think`, by a thought and a greeting. Where the prompt says `withhold`, a hook ends the answer.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from fake_router import Reply
from harness import serving

from tandem.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
MODEL_PATH = ROOT / "model" / "tandem-tiny"
GREETING = "Hello from the model."
SETTINGS = {"model_family": "qwen3", "api_keys": ("sesame",)}
PROCESSORS = ("json_schema", "tagged", "min_new_tokens", "thinking_budget")
WITHHELD = "withhold"
ROW = 4
"""Characters at once."""
_TOOL = re.compile(r'^\{"name": .*\}$', re.MULTILINE)
_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_tokenizer = Tokenizer.load(MODEL_PATH)


async def say(reply: Reply) -> None:
    forms = {each.name: json.loads(each.args_json) for each in reply.task.logits.processors}
    await tell(reply, answer(prompt_of(reply), forms))


def prompt_of(reply: Reply) -> str:
    return _tokenizer.decode(reply.task.prompt_token_ids)


async def tell(reply: Reply, text: str, *, row: int = ROW, cached_tokens: int = 0) -> None:
    """`row`: characters at once. `cached_tokens`: of the prompt."""
    rows = [text[place : place + row] for place in range(0, len(text), row)]
    for output in range(reply.submit.n):
        for row in rows:
            reply.text(row, output=output)
            await reply.flush()
        if WITHHELD in prompt_of(reply):
            reply.end(output=output, stop_reason="test_policy")
        else:
            reply.finish(output=output, completion_tokens=len(rows), cached_tokens=cached_tokens)
    await reply.flush()


def answer(prompt: str, forms: dict[str, Any]) -> str:
    last = prompt.rpartition("<|im_start|>user")[2]
    if result := _RESULT.search(last):
        said = f"The tool says: {result[1]}"
        return (
            json.dumps(made_of(forms["json_schema"]["schema"])) if "json_schema" in forms else said
        )
    if "tagged" in forms:
        return tagged(forms["tagged"])
    if "json_schema" in forms:
        return json.dumps(made_of(forms["json_schema"]["schema"]))
    if tools := [json.loads(line) for line in _TOOL.findall(prompt)]:
        arguments = made_of(tools[0].get("parameters") or {})
        call = json.dumps({"name": tools[0]["name"], "arguments": arguments})
        return f"<tool_call>\n{call}\n</tool_call>"
    thought = "<think>\nI greet.\n</think>\n\n" if "think" in last else ""
    return thought + GREETING


def tagged(form: dict[str, Any]) -> str:
    call = form["calls"][0]
    made = json.dumps(made_of(call["schema"]))
    begin, end = form.get("begin", ""), form.get("end", "")
    return f"{begin}{call['begin']}{made}{call['end']}{end}"


def made_of(schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
    """A value that the schema describes."""
    root = root or schema
    if "$ref" in schema:
        return made_of(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return made_of(schema[name][0], root)
    match schema.get("type", "object"):
        case "string":
            return "Bern"
        case "integer":
            return 20
        case "number":
            return 20.5
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            return [made_of(schema.get("items") or {"type": "string"}, root)]
    return {name: made_of(each, root) for name, each in schema.get("properties", {}).items()}


async def main() -> None:
    async with serving(MODEL_PATH, say, SETTINGS) as frontend:
        fleet = frontend.fleet(logits_processors=PROCESSORS)
        frontend.router.change_fleet(fleet)
        print(frontend.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
