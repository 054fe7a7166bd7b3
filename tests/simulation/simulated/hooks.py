"""Hooks that judge as the scripts say, at once or late, and notice what they must not see."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Sequence

from simulated.dice import Dice
from simulated.loop import Process
from simulated.script import (
    TERMINATED,
    TERMINATED_IN_PREFILL,
    Request,
    Token,
    request_of,
    text_of,
    token_of,
)
from tandem.errors import HookError
from tandem.hooks.deferred import Deliver, Ruling, SequenceInfo, Work
from tandem.hooks.piece import Piece


class ScriptedHooks:
    """Implements tandem.hooks.deferred.DeferredHooks."""

    resumable = True

    def __init__(
        self, dice: Dice, process: Process, phase: str, requests: dict[int, Request], *, late: bool
    ) -> None:
        self._dice = dice
        self._process = process
        self._phase = phase
        self._requests = requests
        self._late = late
        self._deliver: Deliver | None = None
        self.open_sequences: dict[int, SequenceInfo] = {}
        self._positions: dict[int, int] = {}
        self._last: dict[Hashable, float] = defaultdict(float)

    async def start(self, deliver: Deliver) -> None:
        self._deliver = deliver

    async def close(self) -> None:
        self.open_sequences.clear()

    def open(self, info: SequenceInfo) -> None:
        if info.request_id in self._positions:
            self._dice.fault(f"hooks are told twice that request {info.request_id} begins")
        self._positions[info.request_id] = 0
        self.open_sequences[info.request_id] = info

    def abort(self, request_id: int) -> None:
        self.open_sequences.pop(request_id, None)

    def submit(self, work: Sequence[Work]) -> None:
        if self._dice.odds(0.005):
            raise RuntimeError("the hooks cannot be asked")
        groups: dict[Hashable, list[Work]] = {}
        for each in work:
            info = self.open_sequences.get(each.request_id)
            if info is not None:
                groups.setdefault(info.group, []).append(each)
        loop = asyncio.get_running_loop()
        for group, works in groups.items():
            due = loop.time() + self._dice.judge_seconds(late=self._late)
            due = self._last[group] = max(due, self._last[group])
            loop.call_at(due, self._judge_all, works, context=self._process.context)

    def _judge_all(self, works: list[Work]) -> None:
        rulings = [self._judge(each) for each in works if each.request_id in self.open_sequences]
        if rulings and self._deliver is not None:
            self._deliver(rulings)

    def _judge(self, work: Work) -> Ruling:
        ruling = Ruling(work.request_id, None, work.final, generated=work.generated)
        ids: list[int] = []
        texts: list[str] = []
        for number in work.piece.token_ids:
            token = token_of(number)
            self._check(work, token)
            if self._phase == "prefill":
                stopped = self._prefill(token, ruling, ids, texts)
            else:
                stopped = self._decode(token, ruling, ids, texts)
            if stopped:
                break
        if ruling.error is None and (ids or texts):
            ruling.piece = Piece("".join(texts), ids)
        if work.final or ruling.error is not None or ruling.reason is not None:
            del self.open_sequences[work.request_id]
        return ruling

    def _check(self, work: Work, token: Token) -> None:
        """Each of a sequence's tokens comes once, in order, and of nobody else."""
        info = self.open_sequences[work.request_id]
        if (token.request, token.output) != (request_of(info.trace_id), info.output_index):
            self._dice.fault(f"hooks of {info} are shown {token}")
        if token.position != self._positions[work.request_id]:
            self._dice.fault(f"hooks are shown {token} out of order")
        self._positions[work.request_id] += 1

    def _prefill(self, token: Token, ruling: Ruling, ids: list[int], texts: list[str]) -> bool:
        script = self._requests[token.request].run(token.prompt, token.output, token.run)
        if script.prefill_hook == "terminate":
            ruling.reason = TERMINATED_IN_PREFILL
        elif script.prefill_hook == "fail":
            ruling.error = HookError("the prefill hook raised")
        else:
            ids.append(token.number)
            texts.append(text_of(token.number))
        return True

    def _decode(self, token: Token, ruling: Ruling, ids: list[int], texts: list[str]) -> bool:
        request = self._requests[token.request]
        script = request.run(token.prompt, token.output, token.run)
        action = script.hook[token.position]
        if action == "terminate":
            ruling.reason = TERMINATED
        elif action == "fail":
            ruling.error = HookError("the hook raised")
        elif action == "rewrite":
            texts.append(f"[{token.number:x}]")
        elif action == "emit":
            ids.append(token.number)
            has_text = request.has_text(script, token.position)
            texts.append(text_of(token.number) if has_text else "")
        return action in ("terminate", "fail")
