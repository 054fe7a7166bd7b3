"""Whether a client got what the script says: every token once, in order, of its own sequence."""

from __future__ import annotations

import json
from collections import Counter

from simulated.classifiers import NAME
from simulated.frontend_process import WAIT_SECONDS, Answer
from simulated.loop import BrokenRule
from simulated.script import REFUSAL, TERMINATED, TERMINATED_IN_PREFILL, Request, text_of
from tandem.upstream.answer import ChoiceFinish
from tandem.v1 import common_pb2


def judge_answer(answer: Answer, *, hasty: bool, faulty: bool, misled: bool) -> None:
    """Raises BrokenRule. `hasty`: some worker does not wait for prefill's hooks. `misled`: one gave
    it rows of others, so that it is right only if it finishes.
    """
    request = answer.request
    finished = answer.error is None and not answer.lost
    if finished and len(answer.ends) != request.prompts * request.n:
        raise BrokenRule(f"request {request.number} is over and has the ends {answer.ends}")
    if why := _broken_error(answer):
        raise BrokenRule(f"request {request.number}: {why}")
    for choice in range(0 if misled and not finished else request.prompts * request.n):
        judged = _Choice(answer, choice, hasty=hasty)
        # The end that a router tells says no number of rows, which then could be wrong.
        if misled and judged.end is not None and judged.end.reason == "content_filter":
            continue
        if why := judged.broken():
            raise BrokenRule(f"request {request.number}, choice {choice}: {why}")
    if finished and (why := _broken_whole(answer, faulty=faulty)):
        raise BrokenRule(f"request {request.number}: {why}")


class _Choice:
    """One output, as it came and as the script has it."""

    def __init__(self, answer: Answer, choice: int, *, hasty: bool) -> None:
        self.hasty = hasty
        request = self.request = answer.request
        self.prompt, self.output = divmod(choice, request.n)
        self.run = request.last_run(self.prompt, self.output)
        rows = answer.rows.get(choice, [])
        self.text = "".join(row[1] for row in rows)
        self.ids = [number for row in rows for number in row[2]]
        self.end = answer.ends.get(choice)
        self.wanted = request.shown(self.prompt, self.output, self.run)
        self.blocked = request.blocked(self.prompt, self.output, self.run)
        self.ending = request.ending(self.prompt, self.output, self.run)

    def broken(self) -> str:
        """What is wrong with it; empty: nothing."""
        if why := self._past_prefill():
            return why
        if self.end is None:
            return self._beginning()
        if self.end.reason != "content_filter":
            return self._ended_by_itself()
        if self.end.stop_reason == NAME:
            return self._ended_by_classifier()
        return self._beginning() or self._ended_by_hook()

    def _past_prefill(self) -> str:
        """Nothing is shown of a run that prefill's hook ended. (One that classifiers block before
        prefill has judged it is run again all the same: nothing of it was shown.)
        """
        request = self.request
        drawn = request.run(self.prompt, self.output, self.run)
        # A stop string that is the first token hides it from prefill's hook too.
        hook = "emit" if request.stop_at == 0 else drawn.prefill_hook
        ended = hook == "fail" or (hook == "terminate" and request.judged.propagate)
        by_itself = self.end is not None and self.end.reason != "content_filter"
        if ended and not self.hasty and (by_itself or self.text or self.ids):
            return f"was ended in prefill and got {self.text} {self.ids} {self.end}"
        return ""

    def _beginning(self) -> str:
        """It is the beginning of what is wanted, or of what is left of that once blocked."""
        ids = [row.number for row in self.wanted if row.number is not None]
        if self.request.want_ids:
            said = self.blocked and REFUSAL.startswith(self.text)
            right = (said or not self.text) and self.ids == ids[: len(self.ids)]
        else:
            text, mark, refusal = self.text.partition(REFUSAL[0])
            if not self.blocked or not REFUSAL.startswith(mark + refusal):
                text = self.text
            right = "".join(row.text for row in self.wanted).startswith(text)
        return "" if right else f"got {self.text} {self.ids}, not {self.wanted}"

    def _complete(self) -> bool:
        if self.request.want_ids:
            return self.ids == [row.number for row in self.wanted if row.number is not None]
        return self.text == "".join(row.text for row in self.wanted)

    def _ended_by_itself(self) -> str:
        assert self.end is not None
        wanted = "length" if self.ending == "length" else "stop"
        reason = None
        if self.ending == "stop_string":
            stop_at = self.request.stop_at
            assert stop_at is not None
            reason = text_of(self.request.token(self.prompt, self.output, self.run, stop_at))
        word: tuple[int, ...] = ()
        if self.ending == "stop_word":
            word = tuple(self.request.word(self.prompt, self.output, self.run))
        by_itself = self.ending not in ("terminate", "fail") and not self.blocked
        end = self.end.reason, self.end.stop_reason, self.end.stop_tokens
        if not by_itself or end != (wanted, reason, word):
            return f"ends with {self.end}, the script with {self.ending}, blocked: {self.blocked}"
        return "" if self._complete() else f"ends with {self.text} {self.ids}, not {self.wanted}"

    def _ended_by_classifier(self) -> str:
        """What was shown before the block stays; what was not is replaced."""
        if not self.blocked:
            return "is blocked, and the script lets it through"
        if not self.text.endswith(REFUSAL):
            return f"is blocked and has no refusal: {self.text}"
        if self.request.want_ids:
            return self._beginning()
        shown = self.text.removesuffix(REFUSAL)
        judged = self.request.judged
        if shown and (judged.hold_back == "all" or not self.request.streaming):
            return f"{shown} was shown before it was judged"
        first = self.request.run(self.prompt, self.output, self.run).blocked_at
        assert first is not None
        bad = [row.text for row in self.wanted if row.position >= first and row.text]
        if judged.hold_back == "window" and any(text in shown for text in bad):
            return f"{shown} was shown and is blocked"
        return self._beginning()

    def _ended_by_hook(self) -> str:
        assert self.end is not None
        siblings = [(self.prompt, output) for output in range(self.request.n)]
        if self.end.stop_reason == TERMINATED:
            endings = {
                self.request.ending(*each, run)
                for each in siblings
                for run in range(self.request.last_run(*each) + 1)
            }
            return "" if "terminate" in endings else "was terminated by no hook"
        if self.end.stop_reason == TERMINATED_IN_PREFILL:
            hooks = {
                self.request.run(*each, run).prefill_hook
                for each in siblings
                for run in range(self.request.last_run(*each) + 1)
            }
            right = "terminate" in hooks and self.request.judged.propagate
            return "" if right else "was terminated by no hook in prefill"
        return f"is withheld for no reason: {self.end}"


def _broken_error(answer: Answer) -> str:
    """Why it should not have failed as it did; empty: it may have."""
    error, over = answer.error, answer.over
    if error is None or over is None:
        return ""
    if error.message == "the router is shutting down":
        return "it was refused by a draining router, and there are others"
    waited = over - answer.asked >= min(WAIT_SECONDS, answer.request.timeout) - 0.001
    if error.message.startswith(("The router is not", "No prefill and")) and not waited:
        return f"it gave up after {over - answer.asked} s: {error.message}"
    if error.code == "deadline_exceeded" and over < answer.asked + answer.request.timeout - 0.01:
        return f"its deadline came early, after {over - answer.asked} s"
    return ""


def _broken_whole(answer: Answer, *, faulty: bool) -> str:
    """What is wrong with a request that has ended well, beside its choices."""
    request = answer.request
    least = most = 0
    for choice, end in answer.ends.items():
        prompt, output = divmod(choice, request.n)
        if why := _broken_scores(request, choice, end):
            return why
        runs = range(request.last_run(prompt, output) + 1)
        bounds = [request.generated(prompt, output, run) for run in runs]
        by_itself = end.reason != "content_filter"
        least += sum(bound[0] for bound in bounds) if by_itself else 0
        most += sum(bound[1] for bound in bounds)
    if not least <= answer.completion_tokens <= most:
        return f"{answer.completion_tokens} tokens are counted, not {least} to {most}"
    return _broken_reports(answer, faulty=faulty) if request.want_report else ""


def _broken_scores(request: Request, choice: int, end: ChoiceFinish) -> str:
    """What classifiers scored is there where it was asked for, and is its own output's."""
    by_hook = end.reason == "content_filter" and end.stop_reason != NAME
    wanted = request.want_report and request.judged.classifier
    if not end.external_scores and (by_hook or not wanted):
        return ""
    scores = json.loads(end.external_scores or "{}").get(NAME, {})
    mine = f"{request.number:032x}", choice % request.n
    right = "error" in scores or (scores.get("of"), scores.get("output")) == mine
    return "" if wanted and right else f"the scores of choice {choice} are {end.external_scores}"


def _broken_reports(answer: Answer, *, faulty: bool) -> str:
    """Each phase reports on each choice that ended by itself; prefill on every run of it, unless it
    was lost after its hand-over.
    """
    assert answer.state is not None
    seen = Counter((each.sequence - answer.state.base, each.phase) for each in answer.reports)
    for choice, end in answer.ends.items():
        for phase in (common_pb2.PHASE_PREFILL, common_pb2.PHASE_DECODE):
            count = seen[choice, phase]
            twice = phase == common_pb2.PHASE_DECODE and count > 1
            lost = faulty and phase == common_pb2.PHASE_PREFILL
            if twice or (not count and not lost and end.reason != "content_filter"):
                return f"{count} reports of choice {choice}'s {common_pb2.Phase.Name(phase)}"
    return ""
