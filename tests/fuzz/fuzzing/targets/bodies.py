"""Bodies of requests: decoded, checked and made into what goes to the router; and forms of answers,
which go on to what a worker reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from fuzzing import requests
from fuzzing.frontend_bench import fleet
from fuzzing.json_values import dumped, spoil_json, spoil_value
from fuzzing.target import MODEL, MODEL_PATH, FoundError, Target
from fuzzing.values import spoil_bytes
from tandem.engine.base import Role
from tandem.errors import TandemError
from tandem.text import tokenizer
from tandem.upstream.submission import Submission
from tandem.v1 import worker_pb2
from tandem.worker.intake import Intake
from tandem_answers.dialects import MESSAGES, RESPONSES
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai import chat_template
from tandem_frontend.openai.asked import Origin
from tandem_frontend.openai.dialects import CHAT, COMPLETION
from tandem_frontend.openai.preprocessor import Preprocessor
from tandem_frontend.openai.strangers import FieldRules
from tandem_frontend.openai.tokenizer import ModelTokenizer

_FORMS = ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


class BodySubject:
    """Reads a body as each dialect does."""

    def __init__(self) -> None:
        path = Path(MODEL_PATH)
        config = FrontendConfig(model_path=str(path), allow_reports=True)
        tokens, template = ModelTokenizer(path), chat_template.load(path)
        self._preprocessor = Preprocessor(config, tokens, template)
        (self._served,) = fleet().models

    async def give(self, data: bytes) -> None:
        for dialect in (CHAT, COMPLETION, RESPONSES, MESSAGES):
            try:
                request, _, _ = dialect.requests.decode(data, FieldRules())
                submission = self._preprocessor.submission(
                    dialect.generating(request),
                    self._served,
                    Origin(id="answer", trace_id="0" * 32),
                )
                common = submission.common_task()
                submission.check_size(common, most=2**24)
            except TandemError as error:
                if error.http_status >= 500:
                    raise FoundError("5xx", f"{type(error).__name__}: {error.message}") from error
                continue
            self.read(submission, common)

    def read(self, submission: Submission, common: bytes) -> None:
        """What is made of it further on."""
        submission.to_submit(0, 1, common=common, seconds=60, parent_span=0)

    async def left_open(self) -> int:
        return 0


class FormSubject(BodySubject):
    """A worker reads the task too."""

    def __init__(self) -> None:
        super().__init__()
        limits = worker_pb2.Limits(max_sequences=16, context_length=4096, vocabulary=2048)
        self._intake = Intake(
            role=Role.DECODE,
            model=MODEL,
            limits=limits,
            tokenizer=tokenizer.Tokenizer.load(MODEL_PATH),
            reads_text=lambda: False,
            forced=(),
        )

    def read(self, submission: Submission, common: bytes) -> None:
        submit = submission.to_submit(0, 1, common=common, seconds=60, parent_span=0)
        try:
            self._intake.read(submit.task)
        except TandemError as error:
            if error.http_status >= 500:
                raise FoundError("5xx", f"{type(error).__name__}: {error.message}") from error


def spoil_form(data: bytes, random: Random) -> bytes:
    """Change the form that a body asks for, and leave the rest as it is."""
    try:
        body: dict[str, Any] = json.loads(data)
        name = next(each for each in _FORMS if each in body)
    except (ValueError, RecursionError, StopIteration, TypeError):
        return spoil_json(data, random)
    value = body[name]
    if isinstance(value, str) and random.randrange(4):
        body[name] = spoil_bytes(_encoded(value), random).decode(errors="replace")
    else:
        body[name] = spoil_value(value, random)
    return dumped(body)


def _encoded(text: str) -> bytes:
    """Halves of surrogate pairs too, which JSON may write."""
    return text.encode(errors="surrogatepass")


@contextmanager
def _bodies() -> Iterator[BodySubject]:
    yield BodySubject()


@contextmanager
def _forms() -> Iterator[FormSubject]:
    yield FormSubject()


BODIES = Target(
    name="bodies", goal=200_000, corpus=requests.bodies, spoil=spoil_json, subject=_bodies
)
FORMS = Target(
    name="forms", goal=100_000, corpus=requests.form_bodies, spoil=spoil_form, subject=_forms
)
