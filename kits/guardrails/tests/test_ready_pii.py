"""Personal data: by patterns and checksums, and by Presidio (a stand-in with its interface)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hook_driver import equal_parts, feed
from presidio_stand_in import Analyzer, stand_in

from tandem.errors import LoadError
from tandem_guardrails.pii import ENTITIES, Pii

FOUND = [
    ("email", "ada.l+x@mail.example.co.uk"),
    ("credit_card", "4111 1111 1111 1111"),
    ("credit_card", "378282246310005"),
    ("credit_card", "5555-5555-5555-4444"),
    ("iban", "DE89 3704 0044 0532 0130 00"),
    ("iban", "GB82WEST12345698765432"),
    ("iban", "NO9386011117947"),
    ("us_ssn", "123-45-6789"),
    ("ip", "192.168.0.254"),
    ("ip", "2001:db8::8a2e:370:7334"),
    ("phone", "+49 30 901820"),
    ("phone", "(212) 555-0123"),
    ("phone", "212-555-0123"),
]
PASSED = [
    "not@here, a@b, 4111 1111 1111 1112, 1234567890123",
    "DE88 3704 0044 0532 0130 00 and XX89370400440532013000",
    "000-12-3456, 666-12-3456, 923-12-3456, 123-00-4567",
    "256.1.1.1, 1.2.3, std::vector, a::b, 12:30:45, cafe:babe",
    "version 1.2.3, 3 + 4 = 7, +1, 2024-01-15",
]


@pytest.fixture(scope="module")
def pii() -> Pii:
    return Pii()


@pytest.mark.parametrize(("entity", "text"), FOUND)
def test_it_is_taken_out_wherever_it_is_cut(pii: Pii, entity: str, text: str) -> None:
    for size in (1, 3, 1000):
        shown = feed(pii, equal_parts(f"Ünder: {text}, THE END.", size))
        assert shown.text == f"Ünder: [{entity}], THE END."
        ended = feed(Pii(entities=[entity], action="terminate"), equal_parts(f"a {text} b", size))
        assert (ended.text, ended.reason) == ("a ", entity)


def test_what_follows_an_iban_is_not_taken_for_a_part_of_it(pii: Pii) -> None:
    assert feed(pii, [("DE89370400440532013000 AND MORE", 1)]).text == "[iban] AND MORE"


def test_a_number_before_a_card_does_not_hide_it(pii: Pii) -> None:
    for size in (1, 100):
        shown = feed(pii, equal_parts("2020 4111 1111 1111 1111.", size))
        assert shown.text == "2020 [credit_card]."


@pytest.mark.parametrize("text", PASSED)
def test_what_fails_its_checksum_or_shape_passes(text: str) -> None:
    for entity in ENTITIES:
        hook = Pii(entities=[entity])
        for size in (1, 5, 1000):
            assert feed(hook, equal_parts(text, size)).text == text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"entities": ["name"]}, "entities must be some of"),
        ({"engine": "spacy"}, "engine must be one of patterns, presidio"),
        ({"presidio": {}}, "engine is patterns"),
        ({"engine": "presidio", "presidio": {"model": "x"}}, "presidio has no model"),
        ({"replacement": 1}, "replacement"),
    ],
)
def test_wrong_settings_are_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        Pii(**config)


# --- Presidio ------------------------------------------------------------------------------------


@pytest.fixture
def presidio(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


@pytest.mark.usefixtures("presidio")
def test_presidio_redacts_over_any_chunks_and_merges_what_overlaps() -> None:
    hook = Pii(engine="presidio", presidio={"overlap": 16, "max_tokens": 4})
    for size in (1, 4, 1000):
        text = "Mail ada@x.com or bob@y.com. Not 1234. See z.com!"
        shown = feed(hook, equal_parts(text, size))
        assert shown.text == "Mail [EMAIL_ADDRESS] or [EMAIL_ADDRESS]. Not 1234. See [URL]!"


@pytest.mark.usefixtures("presidio")
def test_presidio_is_asked_as_configured() -> None:
    hook = Pii(
        engine="presidio",
        entities=["NUMBER"],
        action="terminate",
        presidio={"language": "de", "score": 0.2},
    )
    shown = feed(hook, [("a@b.com 1", 1)])
    assert (shown.text, shown.reason) == ("a@b.com ", "NUMBER")
    analyzer: Analyzer = hook._filter._analyzer  # type: ignore[attr-defined]
    assert analyzer.given["nlp_engine"].models == [{"lang_code": "de", "model_name": "no_op"}]
    assert analyzer.given["nlp_engine"].loaded
    assert analyzer.calls[-1]["language"] == "de"


@pytest.mark.usefixtures("presidio")
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"entities": ["NAME"]}, "knows no NAME here, only CREDIT_CARD, EMAIL_ADDRESS"),
        ({"presidio": {"score": 2}}, "score"),
        ({"presidio": {"config": "/nowhere.yaml"}}, "there is no file"),
        ({"presidio": {"overlap": -1}}, "overlap"),
    ],
)
def test_wrong_presidio_settings_are_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        Pii(engine="presidio", **config)


@pytest.mark.usefixtures("presidio")
def test_presidios_own_configuration_is_used_and_its_error_shown(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("fine")
    (tmp_path / "bad.yaml").write_text("broken")
    hook = Pii(engine="presidio", presidio={"config": str(tmp_path / "good.yaml")})
    assert feed(hook, [("a@b.com", 1)]).text == "[EMAIL_ADDRESS]"
    with pytest.raises(LoadError, match="Presidio raised ValueError"):
        Pii(engine="presidio", presidio={"config": str(tmp_path / "bad.yaml")})


def test_without_presidio_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    with pytest.raises(LoadError, match=r"tandem-serving\[presidio\]"):
        Pii(engine="presidio")
