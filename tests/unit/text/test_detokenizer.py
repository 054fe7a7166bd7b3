"""Joined pieces are what decoding everything at once gives, for any tokens in any pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from tandem.errors import StartError
from tandem.text.byte_table import ByteTable, is_byte_level, special_tokens
from tandem.text.detokenizer import ByteDetokenizer, StreamDetokenizer
from tandem.text.tokenizer import Tokenizer

BROKEN = b"\xe2\x98\x83\xf0\x9f\x98\x80\xc3\xa9\xff\x80 a"
ROOT = Path(__file__).resolve().parents[3]


def _byte_level() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(ROOT / "model" / "tandem-tiny" / "tokenizer.json"))


def _sentencepiece() -> tokenizers.Tokenizer:
    """As Llama 2 and Mistral: a space mark, and single bytes for what the vocabulary lacks."""
    words = ["▁", "▁▁", "a", "▁the", "é", "☃", "ing", "\ufffd"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


KINDS = {"byte level": _byte_level(), "byte fallback": _sentencepiece()}
BYTES = {
    piece[0]: number
    for number, piece in enumerate(ByteTable(KINDS["byte level"]).pieces)
    if len(piece) == 1
}
LOADED = {kind: Tokenizer(tokenizer) for kind, tokenizer in KINDS.items()}
SPECIAL = {kind: set(special_tokens(tokenizer).values()) for kind, tokenizer in KINDS.items()}


def _token_ids(tokenizer: tokenizers.Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any ids, those that break characters often, and ids the tokenizer does not have."""
    vocabulary = tokenizer.get_vocab()
    size = max(vocabulary.values()) + 1
    fallback = [vocabulary.get(f"<0x{byte:02X}>") for byte in BROKEN]
    encoded = [tokenizer.encode(char, add_special_tokens=False).ids for char in "☃😀é a\ufffd"]
    breaking = [i for i in fallback if i is not None] + [i for ids in encoded for i in ids]
    special = sorted(special_tokens(tokenizer).values())
    one = st.one_of(st.integers(0, size + 3), st.sampled_from(breaking), st.sampled_from(special))
    return st.lists(one, max_size=24)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=400)
@given(data=st.data())
def test_pieces_join_to_what_decoding_all_at_once_gives(kind: str, data: st.DataObject) -> None:
    token_ids = data.draw(_token_ids(KINDS[kind]))
    special = SPECIAL[kind]
    shown = data.draw(st.one_of(st.just([]), st.lists(st.sampled_from([*special, 300]))))
    detokenizer = LOADED[kind].detokenizer(shown)
    pieces, rest = [], token_ids
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(detokenizer.push(rest[:size]))
        rest = rest[size:]
    left = [token_id for token_id in token_ids if token_id not in special.difference(shown)]
    whole = KINDS[kind].decode(left, skip_special_tokens=False)
    assert "".join(pieces) + detokenizer.flush() == whole
    assert detokenizer.flush() == ""


@pytest.mark.promise("S1-300")
@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_shown_to_whom_they_are_named_alone(kind: str) -> None:
    first, second = sorted(SPECIAL[kind])[:2]
    name = KINDS[kind].id_to_token(first)
    named, other = LOADED[kind].detokenizer([first]), LOADED[kind].detokenizer()
    shown, hidden = ["".join([each.push([second]), each.push([first])]) for each in (named, other)]
    assert (shown + named.flush(), hidden + other.flush()) == (name, "")


def test_a_special_token_ends_the_character_before_it() -> None:
    detokenizer = LOADED["byte level"].detokenizer([3])
    assert detokenizer.push([BYTES[0xE2]]) == ""
    assert detokenizer.push([3]) == "\ufffd<|im_start|>"
    assert not detokenizer.incomplete


@pytest.mark.parametrize("kind", KINDS)
def test_which_texts_are_special_tokens(kind: str) -> None:
    tokenizer = LOADED[kind]
    names = {KINDS[kind].id_to_token(token_id): token_id for token_id in SPECIAL[kind]}
    texts = ["a", *reversed(names), "", "<tool>", next(iter(names)) + "x"]
    assert tokenizer.special_ids_of(texts) == list(reversed(names.values()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_character_appears_with_its_last_byte(kind: str) -> None:
    detokenizer = LOADED[kind].detokenizer()
    for token_id in KINDS[kind].encode("a", add_special_tokens=False).ids:
        assert detokenizer.push([token_id])
    assert not detokenizer.incomplete


def test_an_unfinished_character_is_a_replacement_character_at_the_end() -> None:
    detokenizer = LOADED["byte level"].detokenizer()
    assert [detokenizer.push([BYTES[byte]]) for byte in (0x61, 0xE2, 0x98)] == ["a", "", ""]
    assert detokenizer.incomplete
    assert detokenizer.flush() == "\ufffd"


def test_byte_level_models_get_the_table_and_others_the_stream() -> None:
    assert isinstance(LOADED["byte level"].detokenizer(), ByteDetokenizer)
    assert isinstance(LOADED["byte fallback"].detokenizer(), StreamDetokenizer)


@pytest.mark.parametrize("text", ["é", "ñ", "Ġx", "<|tool|>"])
@pytest.mark.parametrize("special", [False, True])
def test_an_added_token_is_shown_as_it_is_found_in_a_text(text: str, special: bool) -> None:
    """Though all characters of "é" and "Ġx" are letters of the byte alphabet too."""
    encoder = _byte_level()
    encoder.add_tokens([tokenizers.AddedToken(text, special=special, normalized=False)])
    tokenizer = Tokenizer(encoder)
    (token_id,) = tokenizer.encode(text, special_tokens=False)
    assert tokenizer.token_bytes(token_id) == text.encode()
    assert tokenizer.decode([token_id]) == text
    assert tokenizer.detokenizer().push([token_id]) == ("" if special else text)


def test_only_a_decoder_that_leaves_bytes_alone_is_byte_level() -> None:
    byte_level, fuse, strip = decoders.ByteLevel(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    assert _is_byte_level(byte_level)
    assert _is_byte_level(decoders.Sequence([byte_level, fuse]))
    assert not _is_byte_level(decoders.Sequence([byte_level, strip]))
    assert not _is_byte_level(decoders.Sequence([decoders.Replace("▁", " "), byte_level]))
    assert not _is_byte_level(None)


def _is_byte_level(decoder: object) -> bool:
    encoder = _byte_level()
    encoder.decoder = decoder
    return is_byte_level(json.loads(encoder.to_str()))


def test_what_the_file_says_of_padding_and_truncation_does_not_touch_a_prompt() -> None:
    encoder = _byte_level()
    encoder.enable_truncation(2)
    encoder.enable_padding(length=64)
    tokenizer = Tokenizer(encoder)
    text = "one two three four"
    assert tokenizer.decode(tokenizer.encode(text, special_tokens=False)) == text


@pytest.mark.promise("S0-025")
def test_a_model_without_tokenizer_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="needs the model's tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_broken_tokenizer_file_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(StartError, match=r"cannot read .*tokenizer\.json"):
        Tokenizer.load(tmp_path)
