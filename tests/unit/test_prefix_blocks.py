"""The numbers that stand for blocks of prompts."""

from __future__ import annotations

from tandem.prefix_blocks import (
    BLOCK_TOKENS,
    MAX_BLOCKS,
    pack,
    packed,
    session_number,
    unpacked,
)

PROMPT = list(range(5 * BLOCK_TOKENS + 7))


def blocks(token_ids: list[int], salt: str = "") -> list[int]:
    return list(unpacked(packed(token_ids, salt)))


def test_prompts_share_the_numbers_of_the_blocks_that_they_share() -> None:
    other = [*PROMPT[: 3 * BLOCK_TOKENS], 99, *PROMPT[3 * BLOCK_TOKENS + 1 :]]
    mine, theirs = blocks(PROMPT), blocks(other)
    assert mine[:3] == theirs[:3]
    assert not {*mine[3:]} & {*theirs}


def test_a_block_s_number_follows_from_all_that_is_before_it() -> None:
    moved = blocks([7, *PROMPT[1:]])
    assert not {*moved} & {*blocks(PROMPT)}


def test_a_rest_that_is_no_whole_block_has_no_number() -> None:
    assert packed(PROMPT[: BLOCK_TOKENS - 1]) == b""
    assert len(blocks(PROMPT)) == 5
    assert blocks(PROMPT[: 2 * BLOCK_TOKENS + 1]) == blocks(PROMPT)[:2]


def test_keys_with_different_salts_share_nothing() -> None:
    assert not {*blocks(PROMPT, "a")} & {*blocks(PROMPT, "b")}
    assert session_number("s", "a") != session_number("s", "b")


def test_the_numbers_are_those_of_every_version_and_machine() -> None:
    """Components of several versions compare them during a rollout."""
    assert packed([1] * BLOCK_TOKENS, "salt").hex() == "43bffc80a4fcacd1"
    assert session_number("session", "salt") == 2628403153868087589


def test_numbers_travel() -> None:
    numbers = [0, 1, 2**64 - 1]
    assert pack(numbers)[8:16] == b"\1" + bytes(7)
    assert list(unpacked(pack(numbers))) == numbers


def test_what_is_no_number_or_too_much_is_left_out() -> None:
    assert list(unpacked(pack([5]) + b"\1\2")) == [5]
    assert len(unpacked(bytes(8 * MAX_BLOCKS + 8))) == MAX_BLOCKS
    assert len(packed([0] * BLOCK_TOKENS * (MAX_BLOCKS + 1))) == 8 * MAX_BLOCKS
