"""What a stress test asks of an executor, and whether what it answers can be right."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sim_oracle import Oracle

from tandem_executor import FinishReason, Request, Response, SamplingConfig

MOST_TOKENS = 48
TYPED = frozenset({"router_lost", "no_pair"})
"""How a request may fail whose router is killed."""
_PROMPT = 4


@dataclass
class Asked:
    """A request whose final response is awaited."""

    request: Request
    cancelled: bool = False
    tokens: dict[int, list[int]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)


class Book:
    """All that was asked of one executor, and what is wrong with its answers. Any thread may use
    it.
    """

    def __init__(self, executor: Any, seed: int, *, shared: bool) -> None:
        """`shared`: whoever comes first reads, so a request has one response: two that were read by
        two threads might be judged in the other order.
        """
        self.executor = executor
        self._shared = shared
        self.endings: Counter[str] = Counter()
        """How requests ended: finish reasons and codes of errors."""
        self.faults: list[str] = []
        self._oracle = Oracle()
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._open: dict[int, Asked] = {}
        self._count = 0

    @property
    def open(self) -> int:
        return len(self._open)

    def is_open(self, request_id: int) -> bool:
        return request_id in self._open

    def enqueue(self) -> int:
        """A request of a prompt that no other has."""
        with self._lock:  # nobody takes a response before the request is written down
            request = self._request()
            request_id: int = self.executor.enqueue_request(request)
            self._open[request_id] = Asked(request)
        return request_id

    def cancel(self, request_id: int) -> None:
        with self._lock:
            if (asked := self._open.get(request_id)) is not None:
                asked.cancelled = True
        self.executor.cancel_request(request_id)

    def some_id(self) -> int:
        """Of a request that is open, or of none."""
        with self._lock:
            return self._rng.choice([0, *itertools.islice(self._open, 64)])

    def take(self, responses: Sequence[Response]) -> None:
        """Judge responses that were read."""
        with self._lock:
            for response in responses:
                self._take(response)

    def _request(self) -> Request:
        rng, self._count = self._rng, self._count + 1
        head, tail = divmod(self._count, 1000)
        return Request(
            [100 + head, 101 + tail, 103, 104],
            max_tokens=rng.randint(1, MOST_TOKENS),
            streaming=not self._shared and rng.random() < 0.5,
            sampling_config=SamplingConfig(
                num_return_sequences=1 if self._shared else rng.choice([1, 1, 1, 2])
            ),
            priority=rng.random(),
            allotted_time_ms=rng.choice([None, None, None, rng.randint(1, 300)]),
        )

    def _take(self, response: Response) -> None:
        asked = self._open.get(response.request_id)
        if asked is None:
            self.faults.append(f"a response after the last one: {response}")
        elif response.has_error():
            if response.error_code not in TYPED:
                self.faults.append(f"an error of the wrong kind: {response}")
            self._end(response.request_id, response.error_code)
        else:
            self._take_result(asked, response)

    def _take_result(self, asked: Asked, response: Response) -> None:
        result = response.result
        sequence, (tokens,) = result.sequence_index, result.output_token_ids
        if sequence in asked.ended:
            self.faults.append(f"a response after its sequence's last: {response}")
        if not asked.request.streaming:
            if tokens[:_PROMPT] != list(asked.request.input_token_ids):
                self.faults.append(f"the prompt of another: {response} to {asked.request}")
            tokens = tokens[_PROMPT:]
        so_far = asked.tokens.setdefault(sequence, [])
        so_far += tokens
        reason = result.finish_reasons[0]
        if result.is_sequence_final:
            asked.ended.add(sequence)
            self._judge(asked, so_far, reason)
        if result.is_final:
            if len(asked.ended) != asked.request.sampling_config.num_return_sequences:
                self.faults.append(f"the last response came before all: {response}")
            self._end(response.request_id, reason.name)

    def _judge(self, asked: Asked, tokens: list[int], reason: FinishReason) -> None:
        request = asked.request
        if tokens != self._oracle.answer(request.input_token_ids, len(tokens)):
            self.faults.append(f"tokens of another: {tokens} to {request}")
        right = {
            FinishReason.LENGTH: len(tokens) == request.max_tokens,
            FinishReason.CANCELLED: asked.cancelled,
            FinishReason.TIMED_OUT: True,
        }
        if not right.get(reason, False):
            self.faults.append(f"{reason.name} after {len(tokens)} tokens of {request}")

    def _end(self, request_id: int, how: str) -> None:
        del self._open[request_id]
        self.endings[how] += 1
