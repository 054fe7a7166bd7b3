"""Run as a process of its own, with a model's folder: which answers to every way to ask for calls
xgrammar takes and refuses against what tagged_uses.py says. Writes JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tagged_uses import USES, VOCABULARY, Args, encoded, schema

from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem_sglang.form_compiler import SglangCompiler

EOS = 1
FOLDER = Path(sys.argv[1])
COMPILER = SglangCompiler(
    backend="xgrammar",
    model_path=str(FOLDER),
    tokenizer_path=str(FOLDER),
    vocabulary=VOCABULARY,
    eos_token_ids=[EOS],
    any_whitespace=False,
    max_whitespace=None,
)


def compiled(args: Args) -> Any:
    entry = LogitsProcessorEntry("tagged", args, from_client=True)
    form = Registry.builtin().form(LogitsProcessorSpec((entry,)), 0)
    written = COMPILER.compile(form.kind, form.source).content.decode()
    return COMPILER._backend.dispatch_structural_tag(written)


def takes(grammar: Any, token_ids: Sequence[int]) -> bool:
    for token in (*token_ids, EOS):
        mask = torch.full((1, VOCABULARY // 32), -1, dtype=torch.int32)
        grammar.fill_vocab_mask(mask, 0)
        if not int(mask[0, token // 32]) >> token % 32 & 1:
            return False
        grammar.accept_token(token)
    return True


def refusal(args: Args) -> str:
    try:
        compiled(args)
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    encoder = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    refused, taken = [], []
    for use, (args, fits, breaks) in USES.items():
        for answer in (*fits, *breaks):
            took = takes(compiled(args), encoded(encoder, answer))
            if took and answer in breaks:
                taken.append([use, answer])
            if not took and answer in fits:
                refused.append([use, answer])
    answers = {
        "refused": refused,
        "taken": taken,
        "wrong": refusal({"calls": [{"schema": {"type": "x"}}]}),
        "ends": refusal({"calls": [{"schema": schema("x"), "end": "<|im_end|>"}]}),
    }
    sys.stdout.write("\n" + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
