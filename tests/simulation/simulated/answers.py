"""Whether a client got what the script says: every token once, in order, of its own sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated.frontend_process import Answer
from simulated.loop import BrokenRule
from simulated.script import REFUSAL, TERMINATED, TERMINATED_IN_PREFILL, Request

if TYPE_CHECKING:
    from simulated.world import World


def judge_answer(world: World, answer: Answer) -> None:
    """Raises BrokenRule."""
    request = answer.request

    def fail(text: str) -> None:
        raise BrokenRule(f"request {request.number}: {text}")

    finished = answer.error is None
    if finished and len(answer.ends) != request.prompts * request.n:
        fail(f"it has ended and choices {sorted(answer.ends)} have")
    for choice in range(request.prompts * request.n):
        prompt, output = divmod(choice, request.n)
        _judge_choice(fail, answer, choice, prompt, output)


def _judge_choice(fail: object, answer: Answer, choice: int, prompt: int, output: int) -> None:
    request = answer.request
    rows = answer.rows.get(choice, [])
    text = "".join(row[1] for row in rows)
    ids = [number for row in rows for number in row[2]]
    end = answer.ends.get(choice)
    wanted = [request.shown(prompt, output, run) for run in range(1)]
    whole_text = "".join(row[1] for row in wanted[0])
    whole_ids = [row[0] for row in wanted[0] if row[2]]
    if request.want_ids:
        if text:
            fail(f"choice {choice} got text {text}")
        if ids != whole_ids[: len(ids)]:
            fail(f"choice {choice} got the ids {ids}, not {whole_ids}")
    elif not whole_text.startswith(text):
        fail(f"choice {choice} got {text}, not {whole_text}")
    if end is None:
        return
    ending = request.ending(prompt, output, 0)
    complete = ids == whole_ids if request.want_ids else text == whole_text
    if end.reason == "content_filter":
        _judge_withheld(fail, request, choice, end.stop_reason, complete)
        return
    if ending in ("terminate", "fail") or not complete:
        fail(f"choice {choice} ends with {end}, the script with {ending}; complete: {complete}")
    reason = "length" if ending == "length" else "stop"
    if end.reason != reason:
        fail(f"choice {choice} ends with {end}, the script with {ending}")


def _judge_withheld(
    fail: object, request: Request, choice: int, reason: str | None, complete: bool
) -> None:
    """A hook ended the request, here or in a sibling."""
    prompt, own = divmod(choice, request.n)
    endings = {output: request.ending(prompt, output, 0) for output in range(request.n)}
    if reason == TERMINATED:
        if "terminate" not in endings.values():
            fail(f"choice {choice} was terminated by nobody")
        if endings[own] == "terminate" and not complete:
            pass  # a sibling was first
    elif reason == TERMINATED_IN_PREFILL:
        hooks = [request.run(prompt, output, 0).prefill_hook for output in range(request.n)]
        if "terminate" not in hooks or not request.judged.propagate:
            fail(f"choice {choice} was terminated by nobody in prefill")
    else:
        fail(f"choice {choice} is withheld because of {reason}, {REFUSAL}")
