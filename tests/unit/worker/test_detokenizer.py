"""Joined pieces are what decoding everything at once gives, for any tokens in any pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from tandem.errors import StartError
from tandem.worker.detokenizer import ByteDetokenizer, ByteTable, StreamDetokenizer
from tandem.worker.tokenizer import Tokenizer

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


def _token_ids(tokenizer: tokenizers.Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any ids, those that break characters often, and ids the tokenizer does not have."""
    vocabulary = tokenizer.get_vocab()
    size = max(vocabulary.values()) + 1
    fallback = [vocabulary.get(f"<0x{byte:02X}>") for byte in BROKEN]
    encoded = [tokenizer.encode(char, add_special_tokens=False).ids for char in "☃😀é a\ufffd"]
    breaking = [i for i in fallback if i is not None] + [i for ids in encoded for i in ids]
    one = st.one_of(st.integers(0, size + 3), st.sampled_from(breaking))
    return st.lists(one, max_size=24)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=400)
@given(data=st.data())
def test_pieces_join_to_what_decoding_all_at_once_gives(kind: str, data: st.DataObject) -> None:
    token_ids = data.draw(_token_ids(KINDS[kind]))
    detokenizer = LOADED[kind].detokenizer()
    pieces, rest = [], token_ids
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(detokenizer.push(rest[:size]))
        rest = rest[size:]
    whole = KINDS[kind].decode(token_ids, skip_special_tokens=True)
    assert "".join(pieces) + detokenizer.flush() == whole
    assert detokenizer.flush() == ""


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


@pytest.mark.promise("S0-025")
def test_a_model_without_tokenizer_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="needs the model's tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_broken_tokenizer_file_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(StartError, match=r"cannot read .*tokenizer\.json"):
        Tokenizer.load(tmp_path)
