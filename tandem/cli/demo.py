"""`tandem demo`: the whole path once, on real processes, with every claim checked. The exit status
is 1 if one does not hold.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence

from tandem.cli import options, reference
from tandem.cli.answer import StreamedAnswer, follow
from tandem.cli.client import ApiError, Client
from tandem.cli.commands import Command
from tandem.cli.console import Console
from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.cli.up import SIMULATED, bring_up, report_stopped, stopping_on_signals
from tandem.engine import model_files
from tandem.logits.builtin import HELLO_WORLD
from tandem.logits.spec import FORCED_SEQUENCE, LogitsProcessorEntry, forced_token_sequence

QUESTION = "Tell me about the assert statement."
MAX_TOKENS = 64
PREFILL_HOOK = "examples.hooks:CountingHook"
DECODE_HOOK = "examples.hooks:PhraseGuard"
GUARDED = "All went well until a forbidden phrase came up, and this is never shown."
SHOWN = "All went well until a "
STOP_REASON = "phrase_guard"


class ClaimError(Exception):
    """Something that the demo shows does not hold."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_engine(parser)
    options.add_run_dir(parser)


def demo(arguments: argparse.Namespace, console: Console) -> int:
    stack_options = StackOptions(
        engine=options.engine(arguments.engine),
        model_path=options.model_path(arguments.model_path),
        hook_prefill=PREFILL_HOOK,
        hook_decode=DECODE_HOOK,
        engine_options=options.engine_options(arguments.engine_options),
        flags={
            "frontend": (
                "--allow-reports",
                f"--client-logits-processors={FORCED_SEQUENCE}",
            )
        },
    )
    failed: list[str] = []
    run_dir = arguments.run_dir / "demo"
    with (
        stopping_on_signals(),
        Stack(stack_options, run_dir=run_dir, parent=os.getpid()) as stack,
    ):
        bring_up(stack, console)
        if stack_options.engine == "sim":
            console.line(SIMULATED)
        for claim in Claims(stack, console).in_order():
            try:
                claim()
            except (ClaimError, ApiError) as error:
                console.failed(str(error))
                failed.append(str(error))
        report_stopped(stack.stop(), None, console)
    console.line()
    console.result({"ok": not failed, "problems": failed})
    if failed:
        console.failed(f"{len(failed)} of what was to be shown did not hold")
    else:
        console.done(console.bold("everything shown held"))
    return 1 if failed else 0


class Claims:
    """What the demo shows, one method each; a method raises ClaimError where it does not hold."""

    def __init__(self, stack: Stack, console: Console) -> None:
        self._stack = stack
        self._console = console
        self._client = Client(stack.url)
        self._model = self._client.get("/v1/models")["data"][0]["id"]

    def in_order(self) -> Sequence[Callable[[], None]]:
        return (
            self.text_streams,
            self.a_sequence_is_forced,
            self.a_hook_stops_a_request,
            self.the_pair_equals_one_process,
        )

    def text_streams(self) -> None:
        """A chat completion streams through both workers, with a hook in each."""
        self._title(f"a chat completion, prefill and decode in two processes: {QUESTION}")
        answer = self._follow({"max_tokens": MAX_TOKENS, "tandem": {"report": True}})
        self._console.line()
        answer.show(self._console)
        for problem in answer.problems():
            raise ClaimError(problem)
        self._console.done(
            "text streamed through two workers, a hook in each, under its own request_id"
        )

    def a_sequence_is_forced(self) -> None:
        """A logits processor is exact across both phases, first token included."""
        self._title(f"a logits processor in both phases: the answer must be {HELLO_WORLD!r}")
        answer = self._follow(self._forcing(HELLO_WORLD))
        if answer.text != HELLO_WORLD or answer.finish_reason != "stop":
            raise ClaimError(f"forced {HELLO_WORLD!r}, but the answer was {answer.text!r}")
        self._console.done("exact from the first token, which prefill sampled")

    def a_hook_stops_a_request(self) -> None:
        """The decode worker's hook ends a request at a phrase that is spread over several
        tokens.
        """
        self._title(f"{DECODE_HOOK} stops an answer at a phrase that spans chunks")
        answer = self._follow(self._forcing(GUARDED))
        if answer.text != SHOWN or answer.stop_reason != STOP_REASON:
            raise ClaimError(f"not stopped as it should: {answer.stop_reason=} {answer.text=}")
        self._console.done(f"stop_reason {STOP_REASON!r}; nothing of the phrase was shown")

    def the_pair_equals_one_process(self) -> None:
        """Greedy tokens through the pair are those of the same model in one aggregated process."""
        self._title("the same prompt, greedy, in one aggregated process")
        prompt = self._tokenize(messages=[{"role": "user", "content": QUESTION}])
        body = {"model": self._model, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
        said = self._client.post("/v1/completions", {**body, "detokenize": False})
        through_pair = said["choices"][0]["token_ids"]
        alone = reference.generate(
            self._stack.options,
            [(prompt, MAX_TOKENS)],
            run_dir=self._stack.run_dir,
            console=self._console,
        )[0]
        ends = self._ends()
        if _without_end(through_pair, ends) != _without_end(alone, ends):
            raise ClaimError(f"tokens differ: pair {through_pair}, one process {alone}")
        self._console.done(f"all {len(through_pair)} tokens are the same")

    def _title(self, text: str) -> None:
        self._console.line()
        self._console.line(self._console.bold(f"— {text}"))

    def _follow(self, body: dict[str, object]) -> StreamedAnswer:
        messages = [{"role": "user", "content": QUESTION}]
        whole = {"model": self._model, "messages": messages, "temperature": 0, **body}
        return follow(self._client, whole, self._console, margin="  ")

    def _forcing(self, text: str) -> dict[str, object]:
        token_ids = self._tokenize(prompt=text, add_special_tokens=False)
        entry: LogitsProcessorEntry = forced_token_sequence(token_ids, min(self._ends()))
        return {
            "max_tokens": len(token_ids) + 8,
            "logits_processors": [{"name": entry.name, "args": dict(entry.args)}],
        }

    def _tokenize(self, **body: object) -> list[int]:
        tokens: list[int] = self._client.post("/tokenize", {"model": self._model, **body})["tokens"]
        return tokens

    def _ends(self) -> frozenset[int]:
        return model_files.eos_token_ids(self._stack.options.model_path)


def _without_end(token_ids: list[int], ends: frozenset[int]) -> list[int]:
    return token_ids[:-1] if token_ids and token_ids[-1] in ends else token_ids


COMMAND = Command(add_arguments, demo, example="tandem demo --engine sim")
