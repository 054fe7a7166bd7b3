"""The one rule of a context's length, and the one of a vocabulary."""

from __future__ import annotations

import pytest

from tandem.errors import InvalidRequestError
from tandem.token_limits import check_token_ids, context_error


def test_prompt_and_completion_share_the_context_to_its_last_token() -> None:
    assert context_error(90, 10, 100) is None
    error = context_error(90, 11, 100, param="prompt")
    assert error is not None
    assert error.param == "prompt"
    assert "90 prompt tokens and 11 to generate" in error.message


@pytest.mark.parametrize("unsaid", [None, 0])
def test_a_completion_of_unknown_length_has_one_token_at_least(unsaid: int | None) -> None:
    assert context_error(99, unsaid, 100) is None
    assert context_error(100, unsaid, 100) is not None


def test_token_ids_are_from_0_to_below_the_vocabulary() -> None:
    check_token_ids([], 1, param="prompt")
    check_token_ids([0, 99], 100, param="prompt")
    for outside in (100, -1):
        with pytest.raises(InvalidRequestError, match=f"prompt: token id {outside} is outside"):
            check_token_ids([5, outside], 100, param="prompt")
