"""How large what travels between the components may be.

A stream carries many requests, so one message that is too large for it would end them all: what a
single request can put into one is bounded here, well below.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""A frame holds one step of every sequence, or a batch of prompts; both stay far below this."""
MAX_REQUEST_MESSAGE_BYTES = 16 * 1024 * 1024
"""What a component is asked, or told, in one message: a task and what goes with it."""
MAX_TASK_BYTES = 8 * 1024 * 1024
"""A request whose serialised Task is larger is refused."""
MAX_MADE_BYTES = 4 * 1024 * 1024
"""Kept of what an engine has made of a sequence, to go on from: 400,000 tokens, or 20,000 with
twenty alternatives each. It travels beside the task.
"""
MAX_KEPT_BYTES = 128 * 1024 * 1024
"""Tasks that a worker keeps for one router. Those beyond it are said again for each leg."""
MAX_PROMPT_LOGPROBS = 1024 * 1024
"""Numbers that log-probabilities of a prompt may be: its tokens, times one more than the
alternatives of each.
"""
MAX_OUTPUTS = 1024
"""One prompt has no more: they are begun, and ended, all together."""


def fill_message(sizes: Iterable[int], most: int, items: int | None = None) -> tuple[int, int]:
    """How many of the first items make a message, of `items` at most, and their bytes: the item by
    which the bytes reach `most` is the last. Sizes of later items are not asked for.
    """
    count = total = 0
    for size in islice(sizes, items):
        count, total = count + 1, total + size
        if total >= most:
            break
    return count, total
