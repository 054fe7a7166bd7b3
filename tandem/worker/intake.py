"""From a StartLeg to what the engine and the output pipeline need, or to the error that says why
not.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from google.protobuf.message import DecodeError
from msgspec import Struct

from tandem import canary, sampling
from tandem.engine import prompt_ids
from tandem.engine.base import EngineRequest, Role
from tandem.errors import (
    ContextLengthError,
    InvalidRequestError,
    UnknownModelError,
    UnsupportedError,
)
from tandem.ids import TRACE_ID, counter
from tandem.logits import embedding_bias
from tandem.logits.contradictions import fields as contradictions
from tandem.logits.forms.limits import DEFAULT_LIMITS, SpecLimits
from tandem.logits.spec import (
    Entry,
    LogitsProcessorEntry,
    LogitsProcessorSpec,
    SpecReader,
    for_role,
)
from tandem.text.stop_strings import StopStrings
from tandem.text.stop_words import StopWords, StopWordTable
from tandem.text.thoughts import ThoughtMarks
from tandem.text.tokenizer import Tokenizer
from tandem.token_limits import context_error
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.fields import fields
from tandem.worker import halves, resumption, task_checks, task_sizes
from tandem.worker.core.leg import Start
from tandem.worker.core.output import SequenceOutput

_TRACE_ID = common_pb2.Task.TRACE_ID_FIELD_NUMBER
_SEED_BITS = 64
_SEEDS_BETWEEN_RUNS = 1_000_003
"""More than a request has outputs."""
_STOP_STATE_BYTES = 400
"""What a state of the stop words takes."""


class ReadTask(Struct, frozen=True):
    """A task that was checked. Nobody changes it: several legs may run it."""

    task: common_pb2.Task
    token_ids: array[int]
    made: array[int]
    """What it goes on behind, where another worker had begun it."""
    logits: LogitsProcessorSpec | None
    stop_words: StopWordTable | None
    cpu_seconds: float
    """What reading the task took."""

    @property
    def size(self) -> int:
        """What it takes, in bytes: its prompt as it came and as engines are given it, what it goes
        on behind, its stop words, and its bias.
        """
        prompt = len(self.task.prompt_text) + 2 * self.token_ids.itemsize * len(self.token_ids)
        words = _STOP_STATE_BYTES * (self.stop_words.states if self.stop_words else 0)
        made = self.made.itemsize * len(self.made) + self.task.resume.ByteSize()
        return prompt + made + words + self.task.embedding_bias.ByteSize()


class ParsedTask(Struct, frozen=True):
    """A task whose prompt was made into tokens; the rest of it is not checked."""

    task: common_pb2.Task
    token_ids: array[int]
    cpu_seconds: float


class Intake:
    """Reads tasks. Numbers each sequence's request in this process (S0-034)."""

    def __init__(
        self,
        *,
        role: Role,
        model: str,
        limits: worker_pb2.Limits,
        tokenizer: Tokenizer,
        reads_text: Callable[[], bool],
        forced: Sequence[LogitsProcessorEntry],
        spec_limits: SpecLimits = DEFAULT_LIMITS,
        park_seconds: float = 0.0,
        parks: Callable[[], bool] = lambda: True,
        lora_adapters: Collection[str] = (),
        cannot_resume: Collection[str] = (),
        obstacle: str = "",
        spent: Callable[[float], object] = lambda seconds: None,
    ) -> None:
        """`reads_text`: whether hooks or classifiers do, so that the output of a leg that begins
        now becomes text whatever the client asked.
        `forced`: processors that every request gets, after its own.
        `spec_limits`: of a request's own. `park_seconds`: how long prefill parks KV; 0: it parks
        none. `parks`: whether it parks some now. `lora_adapters`: the names of those that the
        engine has. `cannot_resume`: as the engine describes it. `obstacle`: why no other worker
        could go on with what this one has begun, whatever it is; empty: others could. `spent` is
        told of CPU seconds in which tasks were read, and made into requests of the engine.
        """
        self._role = role
        self._model = model
        self._limits = limits
        self._tokenizer = tokenizer
        self._reads_text = reads_text
        self._forced = tuple(forced)
        self._spec_limits = spec_limits
        self._park_seconds = park_seconds
        self._parks = parks
        self._lora_adapters = lora_adapters
        self._cannot_resume = cannot_resume
        self._obstacle = obstacle
        self._specs = SpecReader(spec_limits)
        self._most_text = limits.context_length * tokenizer.longest_token
        self._spent = spent
        self._next_request_id = counter()

    def read(self, data: bytes) -> ReadTask:
        """What legs that run a task have in common. Raises RequestError, naming the field."""
        return self.check(self.parse(data))

    def parse(self, data: bytes) -> ParsedTask:
        """The part of reading that takes time with the prompt. May be called in any thread. Raises
        RequestError.
        """
        began = time.thread_time()
        task_sizes.check(data, self._limits, most_text=self._most_text, specs=self._spec_limits)
        task = _parse(data)
        token_ids = self._prompt(task, data)
        return ParsedTask(task, token_ids, time.thread_time() - began)

    def check(self, parsed: ParsedTask) -> ReadTask:
        """Do the rest of reading a task. Raises RequestError."""
        began = time.thread_time()
        task = parsed.task
        if task.HasField("regeneration"):
            _sample_again(task.sampling, task.regeneration)
        self._check_task(task)
        if error := context_error(
            len(parsed.token_ids), task.sampling.max_tokens, self._limits.context_length
        ):
            raise error
        task_checks.check_prompt_logprobs(task.sampling, len(parsed.token_ids))
        made = resumption.made(task, self._limits)
        words = task.sampling.stop_words
        table = StopWordTable([word.token_id for word in words]) if words else None
        logits = self._logits(task)
        contradictions.check(logits, max_tokens=task.sampling.max_tokens)
        seconds = parsed.cpu_seconds + time.thread_time() - began
        self._spent(seconds)
        return ReadTask(task, parsed.token_ids, made, logits, table, seconds)

    def accept(self, link: int, command: worker_pb2.StartLeg, read: ReadTask) -> Start:
        """A leg that runs a task. Raises RequestError, naming the field."""
        began = time.thread_time()
        self._check_command(command)
        task = read.task
        if command.canary:
            canary.check(command, task)
        if command.context_only and task.sampling.HasField("prompt_logprobs"):
            raise UnsupportedError(
                "a request whose phases run one by one has no log-probabilities of its prompt",
                param="prompt_logprobs",
            )
        params = _for_engine(task.sampling)
        if read.made:
            _check_resumes(command)
            params.ClearField("prompt_logprobs")  # they came before the first token
        if command.say_logprobs and not params.HasField("logprobs"):
            params.logprobs = 0
        if params.HasField("seed"):
            # Other outputs, and other runs of one output, are to differ.
            offset = command.output_index
            if not task.regeneration.HasField("seed"):
                offset += task.regeneration.count * _SEEDS_BETWEEN_RUNS
            params.seed = (params.seed + offset) % 2**_SEED_BITS
        request = EngineRequest(
            request_id=self._next_request_id(),
            token_ids=read.token_ids,
            made=read.made,
            sampling=params,
            logits=None if command.canary else read.logits,
            room=command.room,
            kv_peer=command.kv_peer,
            timeout_seconds=command.timeout_ms / 1000,
            trace_id=task.trace_id,
            cache_salt=task.cache_salt,
            kv_hints=task.kv_hints,
            lora_adapter=task.lora_adapter,
            tenant=task.tenant,
            embedding_bias=task.embedding_bias if task.HasField("embedding_bias") else None,
            output_index=command.output_index,
            park_seconds=self._park_seconds if command.context_only else 0.0,
            parked=bool(command.task_digest),
        )
        shared = command.kept_task and not command.task
        own = 0 if shared else len(command.task) + read.size
        output = self._output(read, judged=not command.canary)
        parking = self._parking(command, read)
        seconds = time.thread_time() - began
        self._spent(seconds)
        return Start(
            link=link,
            command=command,
            task=task,
            request=request,
            output=output,
            parking=parking,
            obstacle=self._obstacle_of(params) if command.say_made else "",
            own_bytes=own + task.embedding_bias.ByteSize(),  # an engine keeps it for each leg
            intake_seconds=read.cpu_seconds + seconds,
        )

    def _obstacle_of(self, params: common_pb2.SamplingParams) -> str:
        return self._obstacle or resumption.obstacle(params, self._cannot_resume)

    def _parking(self, command: worker_pb2.StartLeg, read: ReadTask) -> worker_pb2.LegParked | None:
        """What the router is to be told of a context-only leg, but for the token. Raises
        VoucherError for the second half of another request.
        """
        if command.task_digest:
            halves.check(read.task, read.token_ids, command.task_digest)
        if not command.context_only:
            return None
        return worker_pb2.LegParked(
            task_digest=halves.digest(read.task, read.token_ids),
            lease_ms=int(self._park_seconds * 1000),
        )

    def _check_task(self, task: common_pb2.Task) -> None:
        if not TRACE_ID.fullmatch(task.trace_id):
            raise InvalidRequestError("trace_id must be 32 lower-case hex digits", param="trace_id")
        if task.model != self._model:
            raise UnknownModelError("this worker serves another model", param="model")
        if task.lora_adapter and task.lora_adapter not in self._lora_adapters:
            raise UnknownModelError("this worker has no such LoRA adapter", param="model")
        sampling.check(task.sampling, vocabulary=self._limits.vocabulary)
        task_checks.check(task, self._limits)
        if task.HasField("embedding_bias"):
            embedding_bias.check(task.embedding_bias, self._limits.vocabulary)

    def _check_command(self, command: worker_pb2.StartLeg) -> None:
        if command.room == 0:
            raise InvalidRequestError("a leg needs a room", param="room")
        if self._role is Role.DECODE and not command.kv_peer:
            raise InvalidRequestError("a decode leg needs its prefill peer", param="kv_peer")
        if command.timeout_ms == 0:
            raise InvalidRequestError("a leg needs a deadline", param="timeout_ms")
        if command.context_only and not self._park_seconds:
            raise UnsupportedError("this worker parks no KV", param="type")
        if command.context_only and not self._parks():
            raise UnsupportedError(
                "a context-only request would show a first token that no classifier has judged",
                param="type",
            )
        if command.task_digest and self._role is not Role.DECODE:
            raise InvalidRequestError(
                "only a decode worker goes on from parked KV", param="task_digest"
            )

    def _prompt(self, task: common_pb2.Task, data: bytes) -> array[int]:
        if bool(task.prompt_token_ids) == bool(task.prompt_text):
            raise InvalidRequestError(
                "a prompt is either token ids or a text, and not empty", param="prompt"
            )
        if task.prompt_text:
            self._check_size(task.prompt_text)
            return array("I", self._tokenizer.encode(task.prompt_text, special_tokens=True))
        token_ids = prompt_ids.read(task, data)
        prompt_ids.check(token_ids, self._limits.vocabulary)
        return token_ids

    def _check_size(self, text: str) -> None:
        """Refuse what cannot fit without tokenising it, which would take long."""
        if len(text) > self._most_text:
            raise ContextLengthError(
                f"a prompt of {len(text)} characters is more than the context of "
                f"{self._limits.context_length} tokens",
                param="prompt",
            )

    def _logits(self, task: common_pb2.Task) -> LogitsProcessorSpec | None:
        # Where it goes on, prefill's token is not the first one.
        role = Role.DECODE if task.HasField("resume") else self._role
        gated = for_role(self._specs.read(task.logits), role.value)
        entries = () if gated is None else gated.entries
        if contradictions.least_tokens(gated):
            stops = _stop_tokens(task.sampling)
            entries = tuple(_before_stops(entry, stops) for entry in entries)
        if entries or self._forced:
            return LogitsProcessorSpec((*entries, *self._forced))
        return None

    def _output(self, read: ReadTask, *, judged: bool) -> SequenceOutput:
        task, stop = read.task, read.task.sampling.stop
        least = contradictions.least_tokens(read.logits)
        shown = task.shown_special_tokens
        reads_text = task.want_text or (judged and self._reads_text()) or bool(stop)
        return SequenceOutput(
            detokenizer=self._tokenizer.detokenizer(shown) if reads_text else None,
            stops=stop_strings(task.sampling, least=least) if stop else None,
            words=None if read.stop_words is None else StopWords(read.stop_words, least=least),
            stop_token_ids=frozenset(task.sampling.stop_token_ids),
        )


def _check_resumes(command: worker_pb2.StartLeg) -> None:
    if command.canary or command.context_only or command.task_digest:
        raise InvalidRequestError("only a whole request goes on elsewhere", param="resume")


def _parse(data: bytes) -> common_pb2.Task:
    try:
        return common_pb2.Task.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError("the task is no tandem.v1.Task") from error


def stop_strings(sampling: common_pb2.SamplingParams, *, least: int = 0) -> StopStrings:
    """The stop strings of a task that has some. `least`: see StopStrings."""
    thoughts = None
    if sampling.HasField("thought"):
        thought = sampling.thought
        thoughts = ThoughtMarks(thought.begin, thought.end, thought.opened, tuple(thought.silent))
    return StopStrings(sampling.stop, least=least, thoughts=thoughts)


def _stop_tokens(sampling: common_pb2.SamplingParams) -> list[int]:
    """Tokens that end an output by themselves, beside the model's own."""
    words = [word.token_id[0] for word in sampling.stop_words if len(word.token_id) == 1]
    return [*sampling.stop_token_ids, *words]


def _before_stops(entry: Entry, stops: list[int]) -> Entry:
    """What keeps an answer from its end keeps it from these tokens too."""
    if not isinstance(entry, LogitsProcessorEntry) or entry.name != contradictions.MINIMUM:
        return entry
    return replace(entry, args={"stop_token_ids": stops, **entry.args}) if stops else entry


def _for_engine(given: common_pb2.SamplingParams) -> common_pb2.SamplingParams:
    """A copy. An engine ends by itself at a stop word of one token; it need not, and where it is to
    go on past the model's own end it might go on past this one too.
    """
    params = common_pb2.SamplingParams()
    params.CopyFrom(given)
    if given.stop_words:
        params.ClearField("stop_words")
        if not given.ignore_eos:
            singles = [word.token_id[0] for word in given.stop_words if len(word.token_id) == 1]
            params.stop_token_ids.extend(singles)
    return params


def _sample_again(params: common_pb2.SamplingParams, regeneration: common_pb2.Regeneration) -> None:
    """What a regeneration samples otherwise replaces what the client asked for."""
    for name in sampling.REGENERATED:
        if regeneration.HasField(name):  # type: ignore[arg-type]
            setattr(params, name, getattr(regeneration, name))


def trace_id_of(task: bytes) -> str | None:
    """For the log of a refusal: None where the task does not say, or says something else. It is the
    first field that a task has.
    """
    try:
        number, content = next(fields(task), (0, b""))
    except ValueError:
        return None
    trace_id = bytes(content).decode("latin-1")
    return trace_id if number == _TRACE_ID and TRACE_ID.fullmatch(trace_id) else None
