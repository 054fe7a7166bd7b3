"""Texts that are cut at seams have the tokens that they have as a whole."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from tandem.text.seams import Seams
from tandem.text.tokenizer import Tokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog ",
    "\n\n  Ünïcode ünd 漢字 😀 <|x|> ",
    "12345 ",
]
MARKERS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "[INST]", "<|a|>")
KINDS: dict[str, Any] = {
    "byte level": (models.BPE(), None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "byte level, a blank first": (models.BPE(), None, pre_tokenizers.ByteLevel()),
    "a blank for the first text": (
        models.BPE(),
        None,
        pre_tokenizers.Metaspace(prepend_scheme="first"),
    ),
    "a blank for every text": (
        models.BPE(),
        None,
        pre_tokenizers.Metaspace(prepend_scheme="always"),
    ),
    "Llama 2's": (
        models.BPE(),
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        None,
    ),
    "letters composed": (
        models.BPE(),
        normalizers.NFC(),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()]),
    ),
    "unigrams": (
        models.Unigram(),
        normalizers.NFKC(),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
    ),
    "words": (
        models.WordPiece(unk_token="[UNK]"),
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    ),
}
TRAINERS = {
    models.BPE: trainers.BpeTrainer,
    models.Unigram: trainers.UnigramTrainer,
    models.WordPiece: trainers.WordPieceTrainer,
}


def tokenizer(kind: str, added: Sequence[AddedToken]) -> Tokenizer:
    model, normalizer, splitter = KINDS[kind]
    made = tokenizers.Tokenizer(model)
    if normalizer is not None:
        made.normalizer = normalizer
    if splitter is not None:
        made.pre_tokenizer = splitter
    made.decoder = decoders.ByteLevel()
    special = {"special_tokens": ["[UNK]"], "show_progress": False}
    unknown = {"unk_token": "[UNK]"} if isinstance(model, models.Unigram) else {}
    made.train_from_iterator(
        CORPUS * 20, TRAINERS[type(model)](vocab_size=400, **special, **unknown)
    )
    made.add_tokens(added)
    return Tokenizer(tokenizers.Tokenizer.from_str(made.to_str()))


def plain(*texts: str, **how: bool) -> list[AddedToken]:
    return [AddedToken(text, **{"normalized": False, "special": True} | how) for text in texts]


def parts(made: Tokenizer, text: str, apart: int) -> list[str]:
    cuts = made.seams.cuts(text, apart)
    return [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])]


def pieces(added: Sequence[AddedToken]) -> list[str]:
    """What texts are made of that are to be hard to cut."""
    texts = [token.content for token in added]
    halves = [half for text in texts for half in (text[:2], text[:-1], text[1:], text[-2:])]
    words = [
        "the",
        "quick",
        " brown",
        "  ",
        "\n",
        " \n",
        "é",
        "é",
        "漢字",
        "😀",
        "123",
        "<",
        "|",
        "x",
    ]
    return texts * 4 + halves + words * 2


@pytest.mark.promise("S5-646")
@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_the_parts_are_those_of_the_whole(kind: str) -> None:
    draw = random.Random(kind)
    for number in range(12):
        added = [
            AddedToken(
                text,
                normalized=draw.random() < 0.2,
                special=draw.random() < 0.7,
                lstrip=draw.random() < 0.2,
                rstrip=draw.random() < 0.2,
                single_word=draw.random() < 0.1,
            )
            for text in draw.sample([*MARKERS, "|><", "<|", "end", "<|im_start|>user", " <s>"], 6)
        ]
        made = tokenizer(kind, added)
        made_of = pieces(added)
        for _ in range(60):
            text = "".join(draw.choices(made_of, k=draw.randint(1, 40)))
            cut = parts(made, text, draw.randint(1, 30))
            whole = made.encode(text, special_tokens=False)
            assert list(chain.from_iterable(made.encode_parts(cut))) == whole, (number, text, cut)


@pytest.mark.promise("S5-646")
def test_texts_that_begin_alike_are_cut_alike() -> None:
    made = tokenizer("byte level", plain(*MARKERS, "<|im_start|>user"))
    draw, made_of = random.Random(5), pieces(plain(*MARKERS))
    for _ in range(300):
        begin, one, other = ("".join(draw.choices(made_of, k=20)) for _ in range(3))
        first, second = (
            [cut for cut in made.seams.cuts(begin + rest, 20) if cut <= len(begin) - 12]
            for rest in (one, other)
        )
        assert first == second


@pytest.mark.promise("S5-646")
@pytest.mark.parametrize(
    ("added", "text", "cuts"),
    [
        (plain("<a>"), "xx<a>yy<a>", [2, 7]),
        (plain("<a>", lstrip=True), "xx  <a>yy", []),
        (plain("<a>", single_word=True), "xx<a>yy", []),
        (plain("<a>", normalized=True), "xx<a>yy", []),
        (plain("<a>", rstrip=True), "xx<a>  <a>", [2, 7]),
        (plain(" <a>"), "xx <a>yy", []),
        (plain("<a>", "!<a>"), "x!<a>yy", [1]),
        (plain("<a>", "!<"), "x!<a>yy", [1]),
        (plain("<a>", "!<a>y"), "x!<a>yy", [1]),
        (plain("<a>", "<a>y"), "xx<a>yy", [2]),
        ([*plain("<a>"), *plain("<a>y", lstrip=True)], "xx <a>y", []),
        ([*plain("<a>"), *plain("<a>y", single_word=True)], "xx<a>yy", []),
        (plain("<a<"), "x<a<a<", []),
        (plain("end"), "the end", []),
        ([], "xx<a>", []),
    ],
)
def test_a_text_is_cut_where_no_token_reaches_across(
    added: list[AddedToken], text: str, cuts: list[int]
) -> None:
    assert Seams(added).cuts(text, 1) == cuts


def test_thousands_of_tokens_are_found_as_one_is() -> None:
    many = plain(*(f"<unused{number}>" for number in range(6000)), *(f"[{n}" for n in range(99)))
    seams = Seams(many)
    assert seams.cuts("x<unused5999>x<unused6000>[98]<unused>[100", 1) == [1, 26, 38]
    assert seams.cuts("<" * 100_000 + "<unused0>", 1) == [100_000]


def test_cuts_are_apart() -> None:
    seams = Seams(plain("<a>"))
    assert seams.cuts("<a>" * 10, 3) == [3, 6, 9, 12, 15, 18, 21, 24, 27]
    assert seams.cuts("<a>" * 10, 4) == [6, 12, 18, 24]
    assert seams.cuts("<a>" * 10, 100) == []


def test_a_tokenizer_that_reads_special_tokens_as_text_has_no_seams() -> None:
    made = tokenizers.Tokenizer(models.BPE())
    made.add_tokens(plain("<a>"))
    made.encode_special_tokens = True
    assert Tokenizer(made).seams.cuts("x<a>y", 1) == []
    assert json.loads(made.to_str())["added_tokens"]
