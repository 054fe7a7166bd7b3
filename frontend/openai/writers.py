"""Rows to answers: as the events of a stream, or collected into one body. Both are given the same
rows in the same order. A row is turned into JSON at once: whoever has many of them writes them in
slices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from frontend.openai.answers import Report, Usage
from frontend.openai.dialects import Dialect, Logprobs
from frontend.openai.tokenizer import Tokenizer
from tandem.errors import InternalError
from tandem.upstream.request_state import Finish, Row
from tandem.upstream.submission import Submission
from tandem.v1 import common_pb2

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"
_ROW_END = b',"logprobs":null,"finish_reason":null}]}\n\n'
_EVENT_END = b"}\n\n"
_NO_CHOICES = b'"choices":[]'
_NO_LOGPROBS = b'"logprobs":null'


class _Offsets:
    """Characters of tokens so far, for each choice: where the next log-probabilities begin."""

    def __init__(self, dialect: Dialect, tokenizer: Tokenizer, choices: int) -> None:
        self._dialect, self._tokenizer = dialect, tokenizer
        self._characters = [0] * choices

    def convert(self, choice: int, entries: Sequence[common_pb2.TokenLogprobs]) -> Logprobs:
        start = self._characters[choice]
        for entry in entries:
            for token_id in entry.token_id:
                piece = self._tokenizer.token_bytes(token_id).decode(errors="replace")
                self._characters[choice] += len(piece)
        return self._dialect.logprobs(self._tokenizer, entries, start)


class EventWriter:
    """Writes server-sent events: a prefix made once, the text as JSON, and a fixed end."""

    def __init__(
        self,
        dialect: Dialect,
        tokenizer: Tokenizer,
        submission: Submission,
    ) -> None:
        head = _encode(
            {
                "id": dialect.id_prefix + submission.id,
                "object": dialect.chunk_object,
                "created": int(time.time()),
                "model": submission.model,
            }
        )
        self._head = b"data: " + head[:-1]
        running = submission.want_running_usage
        self._nulls = b',"usage":null' if submission.want_usage and not running else b""
        self._include_usage = submission.want_usage
        self._dialect = dialect
        self._offsets = _Offsets(dialect, tokenizer, submission.choices)
        self._starts = [
            self._head + self._nulls + b',"choices":[{"index":%d,' % choice
            for choice in range(submission.choices)
        ]
        self._before = [start + dialect.before_text for start in self._starts]
        self._after = dialect.after_text + _ROW_END
        self._token_ids = submission.want_token_ids
        self._echoes = submission.echoes

    def opening(self) -> Iterator[bytes]:
        """The events before any output: each choice's role, or the prompt it echoes."""
        if self._dialect.opening:
            return (start + self._dialect.opening + _ROW_END for start in self._starts)
        return (
            before + _encode(text) + self._after
            for before, text in zip(self._before, self._echoes, strict=False)
        )

    def row(self, row: Row) -> bytes:
        """One row's event; nothing where the row shows nothing, such as half a character."""
        choice, text, token_ids, logprobs = row
        if not logprobs and not token_ids:
            return self._before[choice] + _encode(text) + self._after if text else b""
        more = b""
        if token_ids:
            more += b',"token_ids":' + _encode(list(token_ids))
        shown = _encode(self._offsets.convert(choice, logprobs)) if logprobs else b"null"
        return b"".join(
            (
                self._before[choice],
                _encode(text),
                self._dialect.after_text,
                more,
                b',"logprobs":',
                shown,
                b',"finish_reason":null}]}\n\n',
            )
        )

    def ending(self, ending: Finish) -> bytes:
        """The event with a choice's finish_reason."""
        return b"".join(
            (
                self._starts[ending.choice],
                self._dialect.no_text,
                b',"token_ids":[]' if self._token_ids else b"",
                b',"logprobs":null,"finish_reason":',
                _encode(ending.reason),
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


class CountingWriter:
    """An EventWriter whose events each have the usage of their choice so far, as vLLM's
    `continuous_usage_stats` has it.
    """

    def __init__(
        self, events: EventWriter, submission: Submission, tokens: Callable[[int], int]
    ) -> None:
        """`tokens`: how many a choice has so far."""
        self._events = events
        self._submission = submission
        self._tokens = tokens

    def opening(self) -> Iterator[bytes]:
        for choice, event in enumerate(self._events.opening()):
            yield self._counted(event, choice, 0)

    def row(self, row: Row) -> bytes:
        event = self._events.row(row)
        return self._counted(event, row[0], self._tokens(row[0])) if event else b""

    def ending(self, ending: Finish) -> bytes:
        event = self._events.ending(ending)
        return self._counted(event, ending.choice, self._tokens(ending.choice))

    def closing(self, usage: Usage, report: Report | None) -> bytes:
        return self._events.closing(usage, report)

    def _counted(self, event: bytes, choice: int, completion: int) -> bytes:
        prompt = self._submission.prompts[choice // self._submission.n].tokens
        usage = b',"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
            prompt,
            completion,
            prompt + completion,
        )
        return event[: -len(_EVENT_END)] + usage + _EVENT_END


class BodyWriter:
    """Collects rows and writes them as one JSON body."""

    def __init__(self, dialect: Dialect, tokenizer: Tokenizer, submission: Submission) -> None:
        choices = submission.choices
        self._dialect = dialect
        self._offsets = _Offsets(dialect, tokenizer, choices)
        self._submission = submission
        self._texts = [[echo] for echo in submission.echoes] or [[] for _ in range(choices)]
        self._ids: list[list[int]] = [[] for _ in range(choices)]
        self._logprobs: list[list[Mapping[str, bytes]]] = [[] for _ in range(choices)]
        """Each row's, as JSON: the items of every list that they have."""
        self._endings: list[Finish | None] = [None] * choices

    def row(self, row: Row) -> None:
        choice, text, token_ids, logprobs = row
        self._texts[choice].append(text)
        self._ids[choice].extend(token_ids)
        if logprobs:
            found = self._offsets.convert(choice, logprobs)
            lists = msgspec.structs.asdict(found)
            self._logprobs[choice].append(
                {name: _encode(items)[1:-1] for name, items in lists.items()}
            )

    def ending(self, ending: Finish) -> None:
        self._endings[ending.choice] = ending

    def pieces(self, usage: Usage, report: Report | None) -> Iterator[bytes]:
        """The body in order; a piece holds no more than one choice without its log-probabilities,
        or those of one row.
        """
        frame = _encode(
            self._dialect.body(
                id=self._dialect.id_prefix + self._submission.id,
                created=int(time.time()),
                model=self._submission.model,
                choices=[],
                usage=usage,
                tandem=report or msgspec.UNSET,
            )
        )
        head, tail = _around(frame, _NO_CHOICES)
        yield head + _NO_CHOICES[:-1]
        for choice in range(len(self._texts)):
            yield from self._choice_pieces(choice)
        yield _NO_CHOICES[-1:] + tail

    def _choice_pieces(self, choice: int) -> Iterator[bytes]:
        if choice:
            yield b","
        whole = _encode(self._choice(choice))
        parts = self._logprobs[choice]
        if not parts:
            yield whole
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
        yield b"]}" + tail

    def _choice(self, choice: int) -> object:
        ending = self._endings[choice]
        if ending is None:
            raise InternalError(f"choice {choice} has no end")
        return self._dialect.choice(
            text="".join(self._texts[choice]),
            index=choice,
            logprobs=None,
            finish_reason=ending.reason,
            stop_reason=_stop_reason(ending),
            token_ids=self._ids[choice] if self._submission.want_token_ids else msgspec.UNSET,
            external_scores=msgspec.Raw(ending.external_scores.encode())
            if ending.external_scores
            else msgspec.UNSET,
        )


def _around(whole: bytes, part: bytes) -> tuple[bytes, bytes]:
    """What stands before and behind the first such member: no string holds it, where its quotes
    would be escaped.
    """
    head, found, tail = whole.partition(part)
    assert found
    return head, tail


def _stop_reason(ending: Finish) -> str | int | None:
    """As vLLM has it: the id of a stop token is a number."""
    return ending.stop_tokens[0] if ending.stop_tokens else ending.stop_reason


def _scores(ending: Finish) -> bytes:
    if not ending.external_scores:
        return b""
    return b',"external_scores":' + ending.external_scores.encode()
