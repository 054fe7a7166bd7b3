"""Random texts that are hard to cut: scripts, code, blanks, special tokens and halves of them."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Final

_WORDS: Final = (
    *("the", " quick", " brown", "fox ", " jumps", " over", "lazy", " dog.", " word", "a", "user"),
    *("Ünïcödé", " naïve", "e\u0301", "a\u0308\u0323", "ﬁ", "Å", "İ", "ß", "①", "½"),
    *("漢字", "日本語の", "中文，", "한국어", "한국", "ไทย", "हिन्दी", "தமிழ்"),
    *("שָׁלוֹם", "مرحبا", " العَرَبِيَّة", "\u200f", "\u202e", "فارسی‌ها"),
    *(
        "😀",
        "👩‍👩‍👧",
        "🏳️‍🌈",
        "👍🏽",
        "🇪🇺",
        "\u200d",
        "\ufe0f",
        "\u00a0",
        "\ufeff",
        "\x00",
        "\x7f",
        "�",
    ),
    *("def f(x):\n\treturn x**2\n", "{'a': [1, 2]}", "</div>", "&amp;", "\\n", "```json\n", "\r\n"),
    *(
        "1",
        "12345",
        "3.14",
        "10,000",
        "'s",
        "don't",
        "—",
        "...",
        "?!",
        "_",
        "##",
        "http://a.b/c?d=e",
    ),
)
_BLANKS: Final = (" ", "  ", "\n", "\n\n", "\t", " \n ", "\r\n", "\u3000", "\u2028", "   \n\n\t  ")
_MARKERS: Final = (
    "<think>",
    "</think>",
    "\n\n</think>\n\n",
    "<tool_call>",
    "<|im_start|>",
    "[INST]",
)
_ODD: Final = ("<", "|", ">", "<|", "|>", "▁", "｜", "[", "</", "<s", "/s>", "Ġ", "<0x0A>")
_SIZES: Final = (0, 1, 2, 3, 6, 12, 25, 60)
_MOST_TOKENS: Final = 24


class Texts:
    """Draws texts for one tokenizer."""

    def __init__(self, draw: random.Random, added: Collection[str], template: str) -> None:
        """`added`: the tokenizer's added tokens, of which those that the template writes come
        oftenest.
        """
        self._draw = draw
        written = sorted(token for token in added if token in template)
        others = draw.sample(sorted(added), min(len(added), _MOST_TOKENS))
        tokens = [*written[:_MOST_TOKENS] * 3, *others, *_MARKERS]
        halves = [half for token in tokens for half in _halves(draw, token)]
        kinds = (_WORDS, _WORDS, _WORDS, _BLANKS, tokens, halves, _ODD)
        self._pieces = [piece for kind in kinds for piece in draw.choices(kind, k=60)]

    def text(self, size: int = 1) -> str:
        """`size`: how many times as long as usual."""
        draw = self._draw
        pieces = draw.choices(self._pieces, k=draw.choice(_SIZES) * size)
        if draw.random() < 0.1:
            pieces.append(draw.choice(_BLANKS) * draw.randint(1, 40))
        if draw.random() < 0.3:
            pieces.append(_character(draw))
        return "".join(pieces)

    def changed(self, text: str) -> str:
        """The text with another piece somewhere."""
        begin = self._draw.randint(0, len(text))
        end = min(len(text), begin + self._draw.choice((0, 0, 1, 5)))
        return text[:begin] + self._draw.choice([*self._pieces[:200], ""]) + text[end:]


def _halves(draw: random.Random, token: str) -> list[str]:
    at = draw.randint(0, len(token))
    return [token[:at], token[at:], token[:-1], token[1:], f" {token}", f"{token}\n "]


def _character(draw: random.Random) -> str:
    """Any one but a surrogate."""
    code = draw.choice((draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)))
    return chr(code)
