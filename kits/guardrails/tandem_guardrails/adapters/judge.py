"""A model as a judge, behind any OpenAI-compatible `/v1/chat/completions`.

Two ways. With a template, the default being the instruction of Llama Guard 3, the judge gets one
message that holds policy and conversation: for models that follow instructions. With `template: ""`
it gets the conversation itself: for a server whose chat template is a guard model's own, as those
of Llama Guard are.

The answer is Llama Guard's: `safe`, or `unsafe` and in the next line the categories. Anything else
fails closed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tandem.errors import LoadError
from tandem.hooks.classifiers.contract import ScoringContext, ScoringError
from tandem_guardrails.adapters.common import ServiceClassifier, conversation, of_type

LLAMA_GUARD_3 = """\
Task: Check if there is unsafe content in 'Agent' messages in conversations according our safety \
policy with the below categories.

<BEGIN UNSAFE CONTENT CATEGORIES>
{categories}
<END UNSAFE CONTENT CATEGORIES>

<BEGIN CONVERSATION>

User: {prompt}

Agent: {output}

<END CONVERSATION>

Provide your safety assessment for ONLY THE LAST Agent message in the above conversation:
- First line must read 'safe' or 'unsafe'.
- If unsafe, a second line must include a comma-separated list of violated categories."""
"""Without the tokens that begin and end turns: the judge's server adds its own."""

# The MLCommons hazards, as Llama Guard 3 was trained on them.
CATEGORIES: Mapping[str, str] = {
    "S1": "Violent Crimes",
    "S2": "Non-Violent Crimes",
    "S3": "Sex-Related Crimes",
    "S4": "Child Sexual Exploitation",
    "S5": "Defamation",
    "S6": "Specialized Advice",
    "S7": "Privacy",
    "S8": "Intellectual Property",
    "S9": "Indiscriminate Weapons",
    "S10": "Hate",
    "S11": "Suicide & Self-Harm",
    "S12": "Sexual Content",
    "S13": "Elections",
    "S14": "Code Interpreter Abuse",
}
_FIELD = re.compile(r"\{(categories|prompt|output)\}")
_MARK = re.compile(r"<(?=\||/?(?:BEGIN|END)\b)", re.IGNORECASE)
_CODE = re.compile(r"[A-Za-z0-9_-]{1,40}")


class JudgeClassifier(ServiceClassifier):
    """A model as judge; `judge` in the settings."""

    name = "judge"
    timeout_ms: float = 5000

    def __init__(
        self,
        *,
        url: str,
        model: str,
        template: str = LLAMA_GUARD_3,
        categories: Mapping[str, str] | None = None,
        ignore_categories: Sequence[str] = (),
        send_prompt: bool = True,
        max_tokens: int = 32,
        api_key_file: str = "",
        api_key_env: str = "",
        http: Mapping[str, Any] | None = None,
    ) -> None:
        """`categories`: code to name, in place of Llama Guard's. `ignore_categories`: codes that do
        not block by themselves. Raises LoadError.
        """
        if template and "{output}" not in template:
            raise LoadError("template must hold {output}, or the judge does not see the output")
        super().__init__(url, "/chat/completions", api_key_file, api_key_env, http)
        self._model = model
        self._template = template
        known = CATEGORIES if categories is None else categories
        self._categories = "\n".join(f"{code}: {name}." for code, name in known.items())
        self._ignored = {code.upper() for code in ignore_categories}
        self._send_prompt = send_prompt
        self._max_tokens = max_tokens

    def _payload(self, ctx: ScoringContext) -> dict[str, Any]:
        if self._template:
            messages = [{"role": "user", "content": self._filled(ctx)}]
        else:
            messages = conversation(ctx, send_prompt=self._send_prompt)
        return {
            "model": self._model,
            "messages": messages,
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "stream": False,
        }

    def _filled(self, ctx: ScoringContext) -> str:
        """In one pass, so that a text that holds a field's name is not filled in turn."""
        values = {
            "categories": self._categories,
            "prompt": _unmarked(ctx.prompt) if self._send_prompt else "",
            "output": _unmarked(ctx.generated_text),
        }
        return _FIELD.sub(lambda found: values[found.group(1)], self._template)

    def _judge(self, ctx: ScoringContext, answer: dict[str, Any]) -> dict[str, Any]:
        lines = [line.strip() for line in _content(answer).strip().splitlines()]
        verdict = lines[0].lower() if lines else ""
        if verdict == "safe":
            return {"verdict": "safe", "categories": []}
        if verdict != "unsafe":
            raise ScoringError("bad_answer")
        codes = _codes(lines[1] if len(lines) > 1 else "")
        blocks = not codes or any(code.upper() not in self._ignored for code in codes)
        return {"block": blocks, "verdict": "unsafe", "categories": codes}


def _content(answer: dict[str, Any]) -> str:
    choices = of_type(answer.get("choices"), list)
    if not choices:
        raise ScoringError("bad_answer")
    message = of_type(of_type(choices[0], dict).get("message"), dict)
    return of_type(message.get("content"), str)


def _codes(line: str) -> list[str]:
    """The codes of the categories in an answer. A judge's other words are not repeated."""
    codes = [code.strip() for code in line.split(",")]
    return [code for code in codes if _CODE.fullmatch(code)][:32]


def _unmarked(text: str) -> str:
    """Without what could pass for the template's own marks, or a model's special tokens."""
    return _MARK.sub("< ", text)
