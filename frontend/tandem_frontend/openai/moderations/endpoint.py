"""Serves `POST /v1/moderations`. Whatever keeps a classifier from judging is an error: an answer
says of every input what all classifiers said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tandem import errors
from tandem.hooks.classifiers.settings import parse
from tandem.pool.process import LostError
from tandem.pool.turns import Turns
from tandem_frontend.config import FrontendConfig
from tandem_frontend.http.messages import Call
from tandem_frontend.metrics import Metrics
from tandem_frontend.openai.answers import Moderation, ModerationAnswer
from tandem_frontend.openai.moderations.judge import Judge, JudgeLink, boot_of
from tandem_frontend.openai.moderations.wire import Judged, ModerationQuestion, Unjudged
from tandem_frontend.openai.reading import readers as reading
from tandem_frontend.openai.reading.bodies import SMALL_BYTES, tell_ignored
from tandem_frontend.openai.reading.moderations import ModerationTexts, check_model
from tandem_frontend.openai.reading.reader import moderation_reader
from tandem_frontend.openai.reading.wire import Answered, ReadingOrder

MAX_WAITING: Final = 256
"""Requests that wait for a turn of one of their texts."""
_FULL: Final = "Too many moderations wait; try again later"
_texts = msgspec.msgpack.Decoder(ModerationTexts)


class _Work:
    """One request's judgements, until they are done or something ends them."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.error: errors.TandemError | None = None

    def fail(self, error: errors.TandemError) -> None:
        if self.error is None:
            self.error = error
            self.task.cancel()


class Moderations:
    """The endpoint, and the process of its classifiers where the deployment has set any."""

    def __init__(self, config: FrontendConfig, metrics: Metrics, readers: reading.Readers) -> None:
        """`readers`: of large bodies. Raises ConfigError."""
        self._metrics = metrics
        self._reader = moderation_reader(config)
        self._readers = readers
        self._boot = msgspec.structs.replace(reading.boot_of(config), name="")
        self._max_bytes = config.max_moderation_bytes
        self._seconds = config.request_timeout_seconds
        self._judge: Judge | None = None
        if config.moderation_classifiers:
            self._judge = Judge(boot_of(config))
            at_once = parse(config.moderation_classifiers).max_concurrency
            self._turns = Turns(at_once, most_waiting=MAX_WAITING, full=_FULL)
        self._open: set[_Work] = set()

    async def follow(self) -> None:
        """Keep the classifiers' process, until cancelled."""
        if self._judge is not None:
            await self._judge.run()

    def fail_all(self, error: errors.TandemError) -> None:
        """End every open request with `error`."""
        for work in self._open:
            work.fail(error)

    async def serve(self, call: Call) -> None:
        """Answer the client. Raises the failure where an input was not judged."""
        judge = self._judge
        if judge is None:
            raise errors.NotConfiguredError(
                "No classifiers judge here: the frontend's setting `moderation_classifiers` names"
                " those that do"
            )
        call.connection.check_opened_in_time()
        asked = await self._read(call)

        async def results() -> ModerationAnswer:
            link = await judge.link()
            name = "+".join(link.names)
            check_model(asked.model, name)
            judged = await self._judge_all(link, asked, call)
            return ModerationAnswer(
                id=f"modr-{call.id}", model=name, results=[*map(_moderation, judged)]
            )

        answer = await self._while_wanted(call, asyncio.get_running_loop().create_task(results()))
        await call.respond(200, msgspec.json.encode(answer))

    async def _read(self, call: Call) -> ModerationTexts:
        body = await call.body(self._max_bytes)
        call.allotment.admit(len(body))  # its texts again, on their way to the process
        order = ReadingOrder(kind="moderation", model="", body=body)
        if len(body) <= SMALL_BYTES:
            read = self._reader.read(order)
        else:
            found = await self._readers.read(order, self._boot, tenant=_tenant(call))
            assert isinstance(found, Answered)
            read = found
        tell_ignored(call, read.ignored, self._metrics)
        return _texts.decode(read.body)

    async def _while_wanted(
        self, call: Call, task: asyncio.Task[ModerationAnswer]
    ) -> ModerationAnswer:
        """Until the client goes away, the request's time runs out or the process ends."""
        work = _Work(task)
        self._open.add(work)
        overdue = errors.DeadlineError("The request's time ran out")
        timer = asyncio.get_running_loop().call_later(self._seconds, work.fail, overdue)
        try:
            call.connection.watch(
                on_lost=lambda: work.fail(errors.CancelledError("The client went away")),
                on_stall=lambda: work.fail(errors.SlowClientError("The client does not read")),
            )
            return await task
        except asyncio.CancelledError:
            if work.error is None:
                raise
            raise work.error from None
        finally:
            timer.cancel()
            self._open.discard(work)
            task.cancel()

    async def _judge_all(self, link: JudgeLink, asked: ModerationTexts, call: Call) -> list[Judged]:
        """In the order of the texts; the first that cannot be judged ends all."""
        tenant = _tenant(call)
        tasks = []
        try:
            async with asyncio.TaskGroup() as group:
                for index, text in enumerate(asked.texts):
                    await self._turns.take(tenant)
                    ask = _asking(text, index, call.trace_id, asked.extra_fields)
                    task = group.create_task(_judged(link, ask, index, call))
                    task.add_done_callback(lambda _: self._turns.give_back())
                    tasks.append(task)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]


def _moderation(judged: Judged) -> Moderation:
    return Moderation(
        flagged=judged.flagged,
        categories=judged.categories,
        category_scores=judged.scores,
        category_applied_input_types={name: ["text"] for name in judged.categories},
    )


def _tenant(call: Call) -> str:
    return "" if call.tenant is None else call.tenant.name


async def _judged(
    link: JudgeLink, ask: Callable[[int], ModerationQuestion], index: int, call: Call
) -> Judged:
    """Raises ClassifierError where there is no judgement."""
    try:
        said, size = await link.judge(ask)
    except LostError as error:
        raise errors.ClassifierError(
            f"Input {index} was not judged: the classifiers' process was lost: {error}"
        ) from error
    if isinstance(said, Unjudged):
        raise errors.ClassifierError(
            f"Input {index} was not judged: the classifier `{said.classifier}` failed:"
            f" {said.reason}"
        )
    call.allotment.admit(size)
    return said


def _asking(
    text: str, index: int, trace_id: str, extra: str
) -> Callable[[int], ModerationQuestion]:
    return lambda call: ModerationQuestion(
        call=call, text=text, index=index, trace_id=trace_id, extra_fields=extra
    )
