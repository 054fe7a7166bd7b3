"""Rows to answers: as the events of a stream, or collected into one body. Both are given the same
rows in the same order. A row is turned into JSON at once: whoever has many of them writes them in
slices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from tandem.errors import InternalError, TandemError
from tandem.upstream.answer import ChoiceFinish, Row
from tandem.v1 import common_pb2
from tandem_frontend.http import errors as http_errors
from tandem_frontend.openai.answer_parsers import CallStart, Content, Part, Reasoning
from tandem_frontend.openai.answers import ChatFinishReason, Report, Usage
from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.logprobs import for_prompt
from tandem_frontend.openai.parsed import Answer, Message, Parsed, answers_of
from tandem_frontend.openai.shapes import ChunkShape, Logprobs
from tandem_frontend.openai.tokenizer import ModelTokenizer

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"
_ROW_REST = b',"logprobs":null,"finish_reason":null}]'
_EVENT_END = b"}\n\n"
_ROW_END = _ROW_REST + _EVENT_END
_NO_CHOICES = b'"choices":[]'
_NO_LOGPROBS = b'"logprobs":null'
_NO_PROMPT_LOGPROBS = b'"prompt_logprobs":null'


class _Offsets:
    """Characters of tokens so far, for each choice: where the next log-probabilities begin."""

    def __init__(self, shape: ChunkShape, tokenizer: ModelTokenizer, choices: int) -> None:
        self._shape, self._tokenizer = shape, tokenizer
        self._characters = [0] * choices

    def convert(self, choice: int, entries: Sequence[common_pb2.TokenLogprobs]) -> Logprobs:
        start = self._characters[choice]
        for entry in entries:
            for token_id in entry.token_id:
                piece = self._tokenizer.token_bytes(token_id).decode(errors="replace")
                self._characters[choice] += len(piece)
        return self._shape.logprobs(self._tokenizer, entries, start)


class EventWriter:
    """Writes server-sent events: a prefix made once, the text as JSON, and a fixed end."""

    def __init__(
        self,
        shape: ChunkShape,
        tokenizer: ModelTokenizer,
        submission: Asked,
    ) -> None:
        head = _encode(
            {
                "id": shape.id_prefix + submission.id,
                "object": shape.chunk_object,
                "created": int(time.time()),
                "model": submission.shown_model,
                **_tier(shape, submission),
            }
        )
        self._head = b"data: " + head[:-1]
        running = submission.want_running_usage
        self._nulls = b',"usage":null' if submission.want_usage and not running else b""
        self._include_usage = submission.want_usage
        self._shape = shape
        self._offsets = _Offsets(shape, tokenizer, submission.choices)
        self._starts = [
            self._head + self._nulls + b',"choices":[{"index":%d,' % choice
            for choice in range(submission.choices)
        ]
        self._before = [start + shape.before_text for start in self._starts]
        self._after = shape.after_text + _ROW_END
        self._submission = submission
        self._answers = answers_of(submission, whole=False)
        self._shows_prompts = submission.shown_again > 0

    @property
    def parsed(self) -> Parsed:
        return Parsed.of(self._answers)

    def opening(self) -> Iterator[bytes]:
        """The events before any output: each choice's role, or its prompt where that is shown."""
        if not (self._shape.opening or self._shows_prompts):
            return iter(())
        return map(self._opening, range(self._submission.choices))

    def _opening(self, choice: int) -> bytes:
        shape = self._shape
        prompt = self._submission.prompts[choice // self._submission.submit.n]
        text = shape.before_text + _encode(prompt.echo or "") + shape.after_text
        ids = b',"prompt_token_ids":' + prompt.shown_ids if prompt.shown_ids else b""
        in_choice, beside = (b"", ids) if shape.in_messages else (ids, b"")
        return b"".join(
            (
                self._starts[choice],
                shape.opening or text,
                in_choice,
                _ROW_REST,
                beside,
                _EVENT_END,
            )
        )

    def row(self, row: Row) -> bytes:
        """One row's event; nothing where the row shows nothing, such as half a character."""
        if self._answers:
            return self._parsed_row(row)
        choice, text, token_ids, logprobs, _ = row
        if not logprobs and not token_ids:
            return self._before[choice] + _encode(text) + self._after if text else b""
        shape = self._shape
        return self._event_of(row, shape.before_text + _encode(text) + shape.after_text)

    def _parsed_row(self, row: Row) -> bytes:
        choice, text, token_ids, logprobs, tokens = row
        parts = self._answers[choice].push(text, tokens)
        if not logprobs and not token_ids:
            if not parts:
                return b""
            if len(parts) == 1 and (event := self._part(choice, parts[0])):
                return event
        return self._event_of(row, self._delta(choice, parts))

    def _part(self, choice: int, part: Part) -> bytes:
        """The event of what most rows are, by the shortest way; empty: it is something else."""
        if isinstance(part, CallStart):
            return b""
        text = _encode(part.text)
        if isinstance(part, Content):
            return self._before[choice] + text + self._after
        parsing = self._submission.parsing
        if isinstance(part, Reasoning):
            shown = b'{"reasoning_content":%b,"reasoning":%b' % (text, text)
        elif parsing is not None and parsing.older:
            shown = b'{"function_call":{"arguments":%b}' % text
        else:
            shown = b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]' % (part.call, text)
        return self._starts[choice] + b'"delta":' + shown + self._after

    def _delta(self, choice: int, parts: Sequence[Part]) -> bytes:
        message = Message(self._submission, choice)
        message.add(parts)
        return b'"delta":' + _encode(message.delta())

    def _event_of(self, row: Row, shown: bytes) -> bytes:
        """The event of a row that shows its tokens. `shown`: how it shows its text."""
        choice, _, token_ids, logprobs, _ = row
        return b"".join(
            (
                self._starts[choice],
                shown,
                b',"token_ids":' + _encode(list(token_ids)) if token_ids else b"",
                b',"logprobs":',
                _encode(self._offsets.convert(choice, logprobs)) if logprobs else b"null",
                b',"finish_reason":null}]}\n\n',
            )
        )

    def ending(self, ending: ChoiceFinish) -> bytes:
        """The event with a choice's finish_reason, and what is still to be shown."""
        last = self._shape.no_text
        if self._answers:
            last = self._delta(ending.choice, self._answers[ending.choice].flush())
        reason = _reason(ending, self._answers)
        return b"".join(
            (
                self._starts[ending.choice],
                last,
                b',"token_ids":[]' if self._submission.task.want_token_ids else b"",
                b',"logprobs":null,"finish_reason":',
                _encode(reason),
                b',"stop_reason":',
                _encode(_stop_reason(ending)),
                _scores(ending),
                b"}]}\n\n",
            )
        )

    def closing(self, usage: Usage, report: Report | None) -> bytes:
        """Usage and report where asked for, then the stream's last line."""
        if not self._include_usage and report is None:
            return _DONE
        last = [self._head, b',"choices":[]']
        if self._include_usage:
            last += [b',"usage":', _encode(usage)]
        if report is not None:
            last += [b',"tandem":', _encode(report)]
        return b"".join((*last, b"}\n\n", _DONE))

    def failing(self, error: TandemError) -> bytes:
        return b"data: " + http_errors.body(error) + b"\n\n"


class CountingWriter:
    """Adds to each event its choice's usage so far: vLLM's `continuous_usage_stats`."""

    def __init__(
        self, events: EventWriter, submission: Asked, tokens: Callable[[int], int]
    ) -> None:
        """`tokens`: how many a choice has so far."""
        self._events = events
        self._submission = submission
        self._tokens = tokens

    @property
    def parsed(self) -> Parsed:
        return self._events.parsed

    def opening(self) -> Iterator[bytes]:
        for choice, event in enumerate(self._events.opening()):
            yield self._counted(event, choice, 0)

    def row(self, row: Row) -> bytes:
        event = self._events.row(row)
        return self._counted(event, row[0], self._tokens(row[0])) if event else b""

    def ending(self, ending: ChoiceFinish) -> bytes:
        event = self._events.ending(ending)
        return self._counted(event, ending.choice, self._tokens(ending.choice))

    def closing(self, usage: Usage, report: Report | None) -> bytes:
        return self._events.closing(usage, report)

    def failing(self, error: TandemError) -> bytes:
        return self._events.failing(error)

    def _counted(self, event: bytes, choice: int, completion: int) -> bytes:
        prompt = self._submission.prompts[choice // self._submission.submit.n].tokens
        usage = b',"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
            prompt,
            completion,
            prompt + completion,
        )
        return event[: -len(_EVENT_END)] + usage + _EVENT_END


class BodyWriter:
    """Collects rows and writes them as one JSON body."""

    def __init__(self, shape: ChunkShape, tokenizer: ModelTokenizer, submission: Asked) -> None:
        choices = submission.choices
        self._shape = shape
        self._offsets = _Offsets(shape, tokenizer, choices)
        self._submission = submission
        self._answers = answers_of(submission, whole=True)
        self._messages = [Message(submission, choice) for choice, _ in enumerate(self._answers)]
        self._texts = [[echo] for echo in submission.echoes] or [[] for _ in range(choices)]
        self._ids: list[list[int]] = [[] for _ in range(choices)]
        self._logprobs: list[list[Mapping[str, bytes]]] = [[] for _ in range(choices)]
        """Each row's, as JSON: the items of every list that they have."""
        self._tokenizer = tokenizer
        self._prompt_logprobs: list[list[bytes]] = [[] for _ in range(choices)]
        """Parts of them, as JSON: items of a list. Those of a chat are the first choice's."""
        self._endings: list[ChoiceFinish | None] = [None] * choices

    @property
    def parsed(self) -> Parsed:
        return Parsed.of(self._answers)

    def row(self, row: Row) -> None:
        choice, text, token_ids, logprobs, tokens = row
        if self._answers:
            self._messages[choice].add(self._answers[choice].push(text, tokens))
        else:
            self._texts[choice].append(text)
        self._ids[choice].extend(token_ids)
        if self._submission.task.sampling.HasField("prompt_logprobs"):
            logprobs = self._past_prompt(choice, logprobs)
        if logprobs:
            found = self._offsets.convert(choice, logprobs)
            lists = msgspec.structs.asdict(found)
            self._logprobs[choice].append(
                {name: _encode(items)[1:-1] for name, items in lists.items()}
            )

    def _past_prompt(
        self, choice: int, logprobs: Sequence[common_pb2.TokenLogprobs]
    ) -> Sequence[common_pb2.TokenLogprobs]:
        """Keep the prompt's. Returns what is shown among those of the choice."""
        prompt = [entry for entry in logprobs if entry.HasField("place")]
        if prompt and self._submission.want_prompt_logprobs:
            items = _encode(for_prompt(self._tokenizer, prompt))[1:-1]
            self._prompt_logprobs[choice].append(items)
        if self._submission.echoes_logprobs:
            return logprobs
        return [entry for entry in logprobs if not entry.HasField("place")]

    def ending(self, ending: ChoiceFinish) -> None:
        self._endings[ending.choice] = ending
        if self._answers:
            self._messages[ending.choice].add(self._answers[ending.choice].flush())

    def pieces(self, usage: Usage, report: Report | None) -> Iterator[bytes]:
        """The body in order; a piece is at most one choice, or the log-probabilities of a row."""
        frame = _encode(
            self._shape.body(
                id=self._shape.id_prefix + self._submission.id,
                created=int(time.time()),
                model=self._submission.shown_model,
                choices=[],
                usage=usage,
                **self._of_prompt(0, here=self._shape.in_messages),
                **_tier(self._shape, self._submission),
                tandem=report or msgspec.UNSET,
            )
        )
        head, tail = _around(frame, _NO_CHOICES)
        yield head + _NO_CHOICES[:-1]
        for choice in range(len(self._texts)):
            yield from self._choice_pieces(choice)
        yield _NO_CHOICES[-1:]
        yield from self._prompt_pieces(0, tail)

    def _choice_pieces(self, choice: int) -> Iterator[bytes]:
        if choice:
            yield b","
        whole = _encode(self._choice(choice))
        parts = self._logprobs[choice]
        if not parts:
            yield from self._prompt_pieces(choice, whole)
            return
        head, tail = _around(whole, _NO_LOGPROBS)
        yield head + b'"logprobs":'
        opening = b"{"
        for name in parts[0]:
            yield b'%b"%b":[' % (opening, name.encode())
            opening, separator = b"],", b""
            for part in parts:
                if part[name]:
                    yield separator + part[name]
                    separator = b","
        yield b"]}"
        yield from self._prompt_pieces(choice, tail)

    def _prompt_pieces(self, choice: int, whole: bytes) -> Iterator[bytes]:
        """`whole`, with the prompt's log-probabilities where it has room for them."""
        head, found, tail = whole.partition(_NO_PROMPT_LOGPROBS)
        if not found:
            yield whole
            return
        yield head + _NO_PROMPT_LOGPROBS.removesuffix(b"null") + b"["
        separator = b""
        for items in self._prompt_logprobs[choice]:
            yield separator + items
            separator = b","
        yield b"]" + tail

    def _of_prompt(self, choice: int, *, here: bool) -> dict[str, msgspec.Raw | None]:
        """Members about a choice's prompt, where they stand here."""
        if not here:
            return {}
        ids = self._submission.prompts[choice // self._submission.submit.n].shown_ids
        told: dict[str, msgspec.Raw | None] = {"prompt_token_ids": msgspec.Raw(ids)} if ids else {}
        if self._submission.want_prompt_logprobs:
            told["prompt_logprobs"] = None
        return told

    def _choice(self, choice: int) -> object:
        ending = self._endings[choice]
        if ending is None:
            raise InternalError(f"choice {choice} has no end")
        if self._answers:
            shown: Mapping[str, object] = {"message": self._messages[choice].whole()}
        else:
            shown = self._shape.shown("".join(self._texts[choice]))
        return self._shape.choice(
            **shown,
            index=choice,
            logprobs=None,
            **self._of_prompt(choice, here=not self._shape.in_messages),
            finish_reason=_reason(ending, self._answers),
            stop_reason=_stop_reason(ending),
            token_ids=self._ids[choice] if self._submission.task.want_token_ids else msgspec.UNSET,
            external_scores=msgspec.Raw(ending.external_scores.encode())
            if ending.external_scores
            else msgspec.UNSET,
        )


def _reason(ending: ChoiceFinish, answers: Sequence[Answer]) -> ChatFinishReason:
    return answers[ending.choice].reason(ending) if answers else ending.reason


def _around(whole: bytes, part: bytes) -> tuple[bytes, bytes]:
    """The bytes around the first such member: no string holds it, for quotes are escaped."""
    head, found, tail = whole.partition(part)
    assert found
    return head, tail


def _tier(shape: ChunkShape, asked: Asked) -> dict[str, str]:
    """A chat names its tier where its client named one, as OpenAI's do; completions never."""
    return {"service_tier": asked.tier} if shape.in_messages and asked.says_tier else {}


def _stop_reason(ending: ChoiceFinish) -> str | int | None:
    """As vLLM has it: the id of a stop token is a number."""
    return ending.stop_tokens[0] if ending.stop_tokens else ending.stop_reason


def _scores(ending: ChoiceFinish) -> bytes:
    if not ending.external_scores:
        return b""
    return b',"external_scores":' + ending.external_scores.encode()
