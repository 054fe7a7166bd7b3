"""What is checked on single requests, each on a fresh instance of the hook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from tandem.hooks.contract import Phase
from tandem.hooks.piece import Piece
from tandem.hooks.trial import Brought, TrialRequest
from tandem_tools.check_hook import samples
from tandem_tools.check_hook.report import Check, counted
from tandem_tools.check_hook.subject import TOOK_LONGER, Subject
from tandem_tools.check_hook.trials import TrialAnswer, answer, contrast, together


async def calls(subject: Subject, texts: Sequence[str]) -> Check:
    """Every call that a worker makes is answered with a valid verdict."""
    check = Check("calls")
    problems: dict[str, str] = {}
    verdicts: Counter[str] = Counter()
    number = 0
    for phase, steps, aborted, streaming in samples.in_time(_situations(texts)):
        async with subject.fresh(phase) as (chain, probe):
            result = await answer(chain, steps, aborted=aborted, streaming=streaming)
        if result.failed is not None and not probe.problems:
            probe.problems[result.failed.removeprefix("the output hook failed: ")] = ""
        for what, where in probe.problems.items():
            problems.setdefault(what, where)
        verdicts.update(probe.verdicts)
        number += len(probe.seconds)
        if any(what.startswith(TOOK_LONGER) for what in problems):
            break
    check.problems = [f"{what}{where}" for what, where in problems.items()]
    told = ", ".join(f"{count:,} {action}" for action, count in verdicts.most_common())
    check.summary = f"{number:,}: {told or 'no verdict'}"
    if verdicts.keys() <= {"emit", "aborted"}:
        check.summary += "; it acted on nothing (--text gives it more to read)"
    return check


def _situations(
    texts: Sequence[str],
) -> Iterator[tuple[Phase, Sequence[Brought], bool, bool]]:
    """Phase, what comes, whether the client goes away then, whether it streams."""
    story = samples.words(texts[0])
    yield "prefill", samples.steps(story[:1]), False, True
    for text in texts:
        yield "decode", samples.steps(samples.words(text)), False, True
    yield "decode", samples.steps(story), False, False
    yield "decode", samples.steps([*story[:3], ""]), False, True
    yield "decode", samples.steps([""]), False, True
    yield (
        "decode",
        [Brought(Piece("several tokens", (1, 2, 3))), *samples.steps(story)],
        False,
        True,
    )
    yield "decode", [Brought(Piece("text alone", ())), *samples.steps(story)], False, True
    for cut in (0, 1, 3, len(story)):
        yield "decode", samples.steps(story[:cut], final=False), True, True


async def borders(subject: Subject, texts: Sequence[str]) -> Check:
    """Whether a text gives the same answer wherever the chunks begin and end."""
    check = Check("chunk borders")
    first: dict[str, tuple[str, TrialAnswer]] = {}
    cuts = [(text, *split) for text in texts for split in samples.splits(text)]
    number = 0
    for text, name, chunks in samples.in_time(cuts):
        async with subject.fresh() as (chain, _):
            result = await answer(chain, samples.steps(chunks))
        number += 1
        known, expected = first.setdefault(text, (name, result))
        if _differ(expected, result):
            one, other = contrast(expected, result)
            check.warnings.append(
                "the shown text depends on where chunks begin and end\n"
                f"{known}: {one}\n{name}: {other}"
            )
            return check
    check.summary = f"{number} splits of {counted(len(first), 'answer')} show the same"
    return check


def _differ(one: TrialAnswer, other: TrialAnswer) -> bool:
    return (one.text, one.stop_reason) != (other.text, other.stop_reason)


async def outputs(subject: Subject, texts: Sequence[str]) -> Check:
    """The n outputs of a request get the verdicts that each would get alone."""
    check = Check("n outputs", "each as if alone")
    for text in samples.in_time(texts):
        chunks = samples.words(text)
        half = len(chunks) // 2
        first, second = samples.steps([*chunks[:half], ""]), samples.steps([*chunks[half:], ""])
        in_turn = list(zip_longest(first, second))
        one_by_one = [(step, None) for step in first[:-1]] + [(None, step) for step in second[:-1]]
        # One by one, a hook that takes both for one text sees the whole of it.
        for turns in (in_turn, [*one_by_one, (first[-1], second[-1])]):
            if await _mixed_up(subject, (first, second), turns):
                check.summary = ""
                check.problems = [
                    "two outputs of one request are mixed up: key what you remember by "
                    "chunk.request_id, of which each output has its own"
                ]
                return check
    return check


async def _mixed_up(
    subject: Subject,
    outputs: Sequence[Sequence[Brought]],
    turns: Sequence[Sequence[Brought | None]],
) -> bool:
    async with subject.fresh() as (chain, probe):
        told = await together(chain, probe, turns)
    for steps, verdicts in zip(outputs, told, strict=True):
        async with subject.fresh() as (chain, probe):
            await answer(chain, steps)
        if verdicts != probe.told[1][: len(verdicts)]:
            return True
    return False


async def tokens(subject: Subject, texts: Sequence[str]) -> Check:
    """Token ids are shown with their text: not before it, and not in its stead."""
    check = Check("token ids", "shown with their text")
    for text in samples.in_time(texts):
        warning = await _tokens_of(subject, text)
        if warning is not None:
            check.summary = ""
            check.warnings = [warning]
            break
    return check


async def _tokens_of(subject: Subject, text: str) -> str | None:
    chunks = samples.words(text)
    early = await _early_token(subject, chunks)
    if early is not None:
        return (
            f"the token ids of {early!r} are shown while its text is held back: "
            "emit(…, hold_tokens=n) holds them too"
        )
    async with subject.fresh() as (chain, _):
        result = await answer(chain, samples.steps(chunks))
    if result.stop_reason is not None:
        return None
    whole, all_tokens = _within(text, result.text), len(result.token_ids) == len(chunks)
    if all_tokens and not whole:
        return (
            "text is taken out, but its token ids are shown, and a client that asks for them "
            "reads it there: emit(…, show_tokens=False) drops them"
        )
    if whole and not all_tokens:
        return "text is shown whose token ids were dropped: suppress(hold_tokens=n) keeps them"
    return None


async def _early_token(subject: Subject, chunks: Sequence[str]) -> str | None:
    """The text of the first token that is shown before its text; None where text was rewritten."""
    async with subject.fresh() as (chain, _):
        request = TrialRequest(chain)
        written = ""
        for step in samples.steps(chunks):
            if request.over:
                return None
            await request.step([step])
            written += step.piece.text
            shown, token_ids = request.outputs[0].text, request.outputs[0].token_ids
            if not written.casefold().startswith(shown.casefold()):
                return None
            for token_id in token_ids:
                if len("".join(chunks[:token_id]).rstrip()) > len(shown):
                    return chunks[token_id - 1]
    return None


def _within(text: str, shown: str) -> bool:
    """All of the text is there, in order, with more between it at most."""
    rest = iter(shown.casefold())
    return all(character in rest for character in text.casefold())
