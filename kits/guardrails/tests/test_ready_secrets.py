"""One made-up credential of each kind, cut anywhere."""

from __future__ import annotations

import base64
import itertools
from typing import Any

import pytest
from hook_driver import equal_parts, feed
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.errors import LoadError
from tandem_guardrails.secrets import KINDS, Secrets

# Put together here, so that no scanner takes this file for a leak.
X = "x0Y1z2A3b4C5d6E7f8G9h0I1j2K3l4M5n6O7p8Q9"
BODY = "\n".join(base64.b64encode(bytes([row] * 48)).decode() for row in range(20))
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----"
SAMPLES: dict[str, list[str]] = {
    "anthropic": ["sk-ant-" + "api03-" + (X * 3)[:93] + "AA"],
    "aws_access_key": ["AKIA" + "IOSFODNN7EXAMPLE", "ASIA" + "ABCDEFGHIJKLMNOP"],
    "aws_bedrock": ["ABSK" + (X * 4)[:120] + "=="],
    "github": ["ghp_" + X[:36], "ghs_" + X[:36], "github_pat_" + (X * 3)[:82]],
    "gitlab": ["glpat-" + X[:20]],
    "google_api_key": ["AIza" + X[:35]],
    "huggingface": ["hf_" + X[:34]],
    "jwt": ["ey" + X[:20] + ".ey" + X + "." + X],
    "npm": ["npm_" + X[:36]],
    "openai": [
        "sk-proj-" + (X * 4)[:74] + "T3BlbkFJ" + (X * 4)[:74],
        f"sk-{X[:20]}T3BlbkFJ{X[:20]}",
    ],
    "private_key": [PEM, PEM.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK")],
    "pypi": ["pypi-" + "AgEIcHlwaS5vcmc" + (X * 3)[:60]],
    "sendgrid": ["SG." + X[:22] + "." + (X * 2)[:43]],
    "slack": [
        "xoxb-" + "1234567890-1234567890-" + X[:24],
        "hooks.slack.com/services/" + (X * 2)[:46],
    ],
    "stripe": ["sk_" + "live_" + X[:24], "whsec_" + X[:32]],
}
EVERY = [(kind, sample) for kind, samples in SAMPLES.items() for sample in samples]


def test_every_kind_has_a_sample() -> None:
    assert SAMPLES.keys() == KINDS.keys()


@pytest.fixture(scope="module")
def secrets() -> Secrets:
    return Secrets()


@pytest.mark.parametrize(("kind", "sample"), EVERY, ids=[kind for kind, _ in EVERY])
def test_it_is_taken_out_wherever_it_is_cut(secrets: Secrets, kind: str, sample: str) -> None:
    for size in (1, 4, 7, 10_000):
        shown = feed(secrets, equal_parts(f"Use é {sample}. Done.", size))
        assert shown.text == "Use é [secret]. Done."
        alone = feed(Secrets(kinds=[kind], action="terminate"), equal_parts(f"a {sample} b", size))
        assert (alone.text, alone.reason) == ("a ", kind)


@settings(max_examples=50)
@given(
    sample=st.sampled_from([sample for kind, sample in EVERY if kind != "private_key"]),
    cuts=st.sets(st.integers(0, 250), max_size=6),
)
def test_no_piece_shows_a_part_of_it(secrets: Secrets, sample: str, cuts: set[int]) -> None:
    text = f"key: {sample}\n"
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [(text[a:b], 1) for a, b in itertools.pairwise(places)]
    assert "".join(feed(secrets, parts).pieces) == "key: [secret]\n"


def test_a_private_key_without_its_end_is_taken_out_too(secrets: Secrets) -> None:
    for size in (5, 10_000):
        shown = feed(secrets, equal_parts(f"Here: {PEM[:400]}", size))
        assert shown.text == "Here: [secret]"
        assert feed(secrets, equal_parts(f"{PEM[:90]}\n-- end", size)).text == "[secret]-- end"


@pytest.mark.parametrize(
    "text",
    [
        "The eye of the sky, sk-y and gh_pages, hf_ and SG.1; eyes.eyed.",
        "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
        "AKIA, ASIAN, AKIATOOSHORT",
    ],
)
def test_other_text_passes(secrets: Secrets, text: str) -> None:
    for size in (1, 6):
        shown = feed(secrets, equal_parts(text, size))
        assert shown.text == text
        assert len(shown.tokens) == len(equal_parts(text, size))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"kinds": ["aws"]}, "kinds must be some of"),
        ({"kinds": []}, "kinds must be some of"),
        ({"action": "x"}, "action"),
    ],
)
def test_wrong_settings_are_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        Secrets(**config)
