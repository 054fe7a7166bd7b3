"""A request's story as one line of text, for the log."""

from __future__ import annotations

from tandem_router.core.story import Choice, Moment, Rejected, SequenceStory, Story

MAX_CHARACTERS = 4096
"""What is longer is cut: the whole is at the admin port."""


def of_story(story: Story) -> str:
    """A story as one line, such as "0.000 queued; 0.002 pair_chosen p:7100 (0.25 of 2) d:7200 (0 of
    1); ...".
    """
    parts = [_sequence(each, numbered=story.n > 1) for each in story.sequences]
    if more := story.more_sequences:
        parts.append("others: " + ", ".join(f"{number} {end}" for end, number in more.items()))
    if story.rejected is not None:
        parts.append(_rejected(story.rejected))
    line = " | ".join(parts)
    return line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]} ..."


def _sequence(sequence: SequenceStory, *, numbered: bool) -> str:
    told = "; ".join(map(_moment, sequence.moments))
    end = f"; {sequence.seconds:.3f} {sequence.outcome}" if sequence.outcome else ""
    return f"[{sequence.output_index}] {told}{end}" if numbered else f"{told}{end}"


def _moment(moment: Moment) -> str:
    choices = [_choice(each) for each in (moment.prefill, moment.decode) if each is not None]
    words = (moment.name, moment.phase, moment.code, moment.cause, *choices)
    return f"{moment.at:.3f} {' '.join(filter(None, words))}"


def _choice(choice: Choice) -> str:
    others = "".join(f", {each.worker} {each.cost:.2g}" for each in choice.others)
    return f"{choice.worker} ({choice.cost:.2g} of {choice.candidates}{others})"


def _rejected(rejected: Rejected) -> str:
    told = "; ".join(f"{each.worker} {each.reason}" for each in rejected.workers)
    more = f"; {rejected.more} more" if rejected.more else ""
    return f"rejected: {told or 'nobody is there'}{more}"
