"""The store of earlier prompts: what it knows, forgets, bounds, and no longer trusts."""

from __future__ import annotations

import random
import tracemalloc
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tokenizer_files import MODEL, puts_around

from tandem import prefix_blocks
from tandem.little_endian import to_bytes
from tandem.upstream.submission import SubmittedPrompt
from tandem.v1 import common_pb2, router_pb2
from tandem.wire import prompt_chunks
from tandem.wire.prompt_chunks import NAME_BYTES
from tandem_frontend.metrics import PrefixMetrics
from tandem_frontend.openai import prefix_store, prefixes
from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.prefix_store import PrefixStore
from tandem_frontend.openai.prefixes import Known, Segment
from tandem_frontend.openai.tokenizer import ModelTokenizer
from tandem_frontend.read_steps import ReadSteps

SIZE = prefix_store.SEGMENT_BYTES + 400


class Store(PrefixStore):
    def __init__(self, segments: int = 10_000) -> None:
        registry = CollectorRegistry()
        super().__init__(segments * SIZE, PrefixMetrics(registry))
        self.value = registry.get_sample_value

    @property
    def held(self) -> float | None:
        return self.value("tandem_frontend_prefix_store_bytes")


def segment(token_id: int = 0) -> Segment:
    return Segment(to_bytes(array("I", [token_id] * 100)), b"", b"")


def names(conversation: str, count: int) -> list[bytes]:
    return [f"{conversation}{number}".encode() for number in range(count)]


def keep(store: PrefixStore, conversation: str, count: int, tenant: str = "") -> None:
    store.keep(tenant, names(conversation, count), [segment() for _ in range(count)])


def known(store: PrefixStore, conversation: str, count: int, tenant: str = "") -> int:
    return len(store.find(tenant, names(conversation, count)))


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return ModelTokenizer(MODEL)


@pytest.fixture(scope="module", params=["nothing", "a beginning", "both"])
def around(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ModelTokenizer:
    """A tokenizer that puts this around a text."""
    folder = tmp_path_factory.mktemp("model")
    puts_around(folder, request.param)
    return ModelTokenizer(folder)


class Reading:
    """Prompts that are read as a frontend reads them, with a store."""

    def __init__(self, tokenizer: ModelTokenizer, store: PrefixStore) -> None:
        self.tokenizer = tokenizer
        self.store = store
        self.read_tokens = 0

    def read(
        self, text: str, tenant: str = "", salt: str = "", adapter: str = ""
    ) -> SubmittedPrompt:
        (prompt,) = self.read_all([text], tenant, salt, adapter)
        return prompt

    def read_all(
        self,
        texts: Sequence[str],
        tenant: str = "",
        salt: str = "",
        adapter: str = "",
        *,
        special_tokens: bool = False,
    ) -> Sequence[SubmittedPrompt]:
        lookup = self.store.lookup(tenant, "m")
        assert lookup is not None
        found = prefixes.read(
            self.tokenizer,
            texts,
            lookup,
            ReadSteps(),
            special_tokens=special_tokens,
            model="m",
            cache_salt=salt,
            lora_adapter=adapter,
        )
        read = [each for each in found if each is not None]
        assert len(read) == len(found)
        self.read_tokens = sum(each.tokens for text in read for each in text.segments)
        return lookup.completed(asked(read)).prompts


def asked(read: Sequence[prefixes.ReadText]) -> Asked:
    return Asked(
        id="a",
        prompts=[SubmittedPrompt(tokens=each.tokens, max_tokens=7, task=b"") for each in read],
        task=common_pb2.Task(),
        submit=router_pb2.Submit(),
        withheld_reason="content_filter",
        timeout_seconds=1.0,
        read=tuple(read),
    )


def text(draw: random.Random, messages: int, words: int = 400) -> str:
    vocabulary = ["the ", "quick ", "Ünï", "漢字", "😀", "\n", "  ", "1234", "<|im", "_start|>"]
    return "".join(
        f"<|im_start|>user\n{''.join(draw.choices(vocabulary, k=words))}<|im_end|>\n"
        for _ in range(messages)
    )


@pytest.mark.promise("S5-646", "S5-710")
def test_prompts_are_the_same_with_the_store_and_without(tokenizer: ModelTokenizer) -> None:
    draw = random.Random(3)
    reading = Reading(tokenizer, Store(60))
    earlier = [text(draw, 1)]
    for _ in range(60):
        begin = draw.choice(earlier)
        prompt = begin[: draw.choice([len(begin), draw.randrange(len(begin))])]
        prompt += text(draw, draw.randint(1, 4), draw.randint(1, 600))
        earlier.append(prompt)
        if len(prompt) < 6000:
            continue
        salt, adapter, tenant = draw.choice("ab"), draw.choice(["", "x"]), draw.choice("tu")
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        whole = SubmittedPrompt.of(ids, max_tokens=7, cache_salt=salt, lora_adapter=adapter)
        assert reading.read(prompt, tenant, salt, adapter) == whole
        if len(prompt) > 30_000:
            earlier = [text(draw, 1)]


@pytest.mark.promise("S5-710")
def test_the_chunks_of_what_is_known_are_not_named_again(
    tokenizer: ModelTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[bytes] = []

    def names_of(token_ids: memoryview, *before: bytes) -> prompt_chunks.Names:
        found = prompt_chunks.names_of(token_ids, *before)
        named.extend(found)
        return found

    reading, first = Reading(tokenizer, Store()), text(random.Random(5), 20)
    known = len(reading.read(first).chunks)
    monkeypatch.setattr(prefixes, "names_of", names_of)
    prompt = reading.read(first + text(random.Random(6), 8))
    assert 0 < len(named) < known // NAME_BYTES
    assert prompt.chunks.endswith(b"".join(named))


@pytest.mark.promise("S5-646")
def test_a_text_behind_another_beginning_is_another_prompt(tokenizer: ModelTokenizer) -> None:
    one, other, same, end = (f"<|im_start|>{letter * 2200}" for letter in "abcd")
    reading = Reading(tokenizer, Store())
    for prompt in (one + same + end, other + same + end, other + same + one):
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        assert reading.read(prompt) == SubmittedPrompt.of(ids, max_tokens=7)


@pytest.mark.promise("S5-646")
def test_of_a_conversation_the_new_turn_alone_is_read(tokenizer: ModelTokenizer) -> None:
    draw = random.Random(3)
    reading = Reading(tokenizer, Store())
    history = text(draw, 40)
    whole = reading.read(history).tokens
    assert reading.read_tokens == whole
    longest = len(tokenizer.encode(text(draw, 4), add_special_tokens=False))
    for _ in range(5):
        history += text(draw, 1)
        reading.read(history)
        assert 0 < reading.read_tokens < longest
    reading.read(history, tenant="another")
    assert reading.read_tokens > whole
    reading.read(history, salt="another")
    assert reading.read_tokens > whole
    reading.read("<|im_start|>" + history)
    assert reading.read_tokens > whole


@pytest.mark.promise("S5-646")
def test_blocks_are_told_up_to_their_most(
    tokenizer: ModelTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (prefix_blocks, prefix_store):
        monkeypatch.setattr(module, "MAX_BLOCKS", 20)
    reading = Reading(tokenizer, Store())
    history = text(random.Random(3), 10)
    ids = tokenizer.encode(history, add_special_tokens=False)
    for _ in range(2):
        assert reading.read(history) == SubmittedPrompt.of(ids, max_tokens=7)


@pytest.mark.promise("S5-650")
def test_prompts_of_one_completion_are_the_same_with_the_store_and_without(
    around: ModelTokenizer,
) -> None:
    draw = random.Random(3)
    reading = Reading(around, Store())
    histories = [text(draw, 8) for _ in range(3)]
    for turn in range(4):
        found = reading.read_all(histories, special_tokens=True)
        for history, prompt in zip(histories, found, strict=True):
            ids = around.encode(history, add_special_tokens=True)
            assert prompt == SubmittedPrompt.of(ids, max_tokens=7)
        whole = sum(prompt.tokens for prompt in found)
        assert reading.read_tokens == whole if turn == 0 else reading.read_tokens < whole / 2
        histories = [history + text(draw, 1) for history in histories]


@pytest.mark.promise("S5-650")
def test_a_completion_after_a_chat_of_the_same_text_has_its_own_beginning(
    around: ModelTokenizer,
) -> None:
    reading, history = Reading(around, Store()), text(random.Random(3), 8)
    for special_tokens in (False, True, False, True):
        ids = around.encode(history, add_special_tokens=special_tokens)
        (prompt,) = reading.read_all([history], special_tokens=special_tokens)
        assert prompt == SubmittedPrompt.of(ids, max_tokens=7)


@pytest.mark.promise("S5-650")
def test_checks_know_what_is_put_around_a_text(
    around: ModelTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_store, "CHECK_EVERY", 2)
    reading, history = Reading(around, Store()), text(random.Random(3), 8)
    for _ in range(5):
        reading.read_all([history], special_tokens=True)
    assert reading.store.value("tandem_frontend_prefix_checks_total", {"result": "same"}) == 2
    assert reading.store.lookup("", "m") is not None


@pytest.mark.promise("S5-650")
def test_nothing_is_known_where_what_is_around_a_text_depends_on_it(tmp_path: Path) -> None:
    puts_around(tmp_path, "the text again")
    tokenizer, lookup = ModelTokenizer(tmp_path), Store().lookup("", "m")
    assert tokenizer.around is None
    assert lookup is not None
    names = {"model": "m", "cache_salt": "", "lora_adapter": ""}
    history = [text(random.Random(3), 8)]
    assert prefixes.read(tokenizer, history, lookup, ReadSteps(), special_tokens=True, **names) == [
        None
    ]
    assert prefixes.read(
        tokenizer, history, lookup, ReadSteps(), special_tokens=False, **names
    ) != [None]


def test_a_short_text_is_read_in_one_go(tokenizer: ModelTokenizer) -> None:
    lookup = Store().lookup("", "m")
    assert lookup is not None
    short = ["<|im_start|>" * 3, "no seam " * 3000]
    names = {"model": "m", "cache_salt": "", "lora_adapter": ""}
    read = prefixes.read(tokenizer, short, lookup, ReadSteps(), special_tokens=False, **names)
    assert read == [None, None]


@pytest.mark.promise("S5-647")
def test_the_store_holds_no_more_than_its_bytes() -> None:
    store = Store(100)
    for number in range(300):
        keep(store, f"c{number}-", 7)
        assert store.held is not None
        assert store.held <= 100 * SIZE
    assert known(store, "c299-", 7) == 7
    assert known(store, "c0-", 7) == 0
    assert sum(known(store, f"c{number}-", 7) for number in range(300)) > 80


@pytest.mark.promise("S5-647")
def test_the_ends_of_prompts_go_before_their_beginnings() -> None:
    store = Store(100)
    keep(store, "a", 60)
    keep(store, "b", 42)
    assert 0 < known(store, "a", 60) < 60
    assert known(store, "b", 42) == 42


@pytest.mark.promise("S5-647")
def test_what_was_asked_for_stays() -> None:
    store = Store(100)
    for letter in "abcd":
        keep(store, letter, 24)
    keep(store, "a", 24)
    keep(store, "e", 24)
    assert [known(store, letter, 24) for letter in "acde"] == [24] * 4
    assert known(store, "b", 24) < 24


@pytest.mark.promise("S5-647")
def test_the_tenant_with_the_most_makes_room() -> None:
    store = Store(100)
    keep(store, "small", 10, tenant="small")
    for number in range(30):
        keep(store, f"large{number}", 10, tenant="large")
    assert known(store, "small", 10, tenant="small") == 10
    assert known(store, "large29", 10, tenant="large") == 10
    assert known(store, "large29", 10, tenant="small") == 0


@pytest.mark.promise("S5-647")
def test_tenants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_store, "MOST_TENANTS", 4)
    store = Store(100)
    for number in range(9):
        keep(store, "a", 2, tenant=str(number))
    assert [known(store, "a", 2, tenant=str(number)) for number in range(9)] == [0] * 5 + [2] * 4
    assert store.held == 8 * SIZE


@pytest.mark.promise("S5-653")
def test_10_000_sessions_take_no_more_memory_than_the_store_may() -> None:
    draw, store, segments = random.Random(3), Store(10_000), 10
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for session in range(10_000):
            tenant = str(session % 50)
            ids = [b"\1" * 4 * draw.randint(1, 200) for _ in range(segments)]
            prompt = [Segment(bytes(e), b"\2" * (len(e) // 32), b"\3" * 16) for e in ids]
            store.keep(tenant, names(f"c{session}-", segments), prompt)
            if session % 500 == 499:
                del ids, prompt
                taken = tracemalloc.get_traced_memory()[0] - before
                assert store.held is not None
                assert taken <= store.held <= 10_000 * SIZE
    finally:
        tracemalloc.stop()
    assert known(store, "c9999-", segments, tenant=str(9999 % 50)) == segments
    assert known(store, "c0-", segments, tenant="0") == 0
    assert store.held is not None
    assert store.held > 9_000 * SIZE


def test_nothing_is_kept_without_room() -> None:
    assert Store(0).lookup("", "m") is None


class Wrong(ModelTokenizer):
    """Reads the parts of a text otherwise than the text."""

    wrong = False

    def encode_parts(self, parts: Sequence[str]) -> list[list[int]]:  # type: ignore[override]
        found = self._tokenizer.encode_parts(parts)
        return [[9, *ids] for ids in found] if self.wrong else found


@pytest.mark.promise("S5-648")
@pytest.mark.parametrize("wrong", ["at once", "stored", "never"])
def test_a_difference_ends_the_store_for_its_model(
    wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prefix_store, "CHECK_EVERY", 3)
    tokenizer, store = Wrong(MODEL), Store()
    del tokenizer.encode_parts  # that of the instance, which hides the class's
    reading = Reading(tokenizer, store)
    history = text(random.Random(3), 20)
    whole = SubmittedPrompt.of(tokenizer.encode(history, add_special_tokens=False), max_tokens=7)
    for turn in range(3):
        tokenizer.wrong = wrong == ("stored" if turn == 0 else "at once")
        reading.read(history)
    tokenizer.wrong = wrong == "at once"
    found = reading.read(history)
    assert reading.read_tokens == whole.tokens  # it was this one's turn
    assert found == whole
    result = "same" if wrong == "never" else "different"
    assert store.value("tandem_frontend_prefix_checks_total", {"result": result}) == 1
    distrusted = store.lookup("", "m") is None
    assert distrusted == (wrong != "never")
    assert bool(store.held) == (wrong == "never")
    assert store.lookup("", "other") is not None
    assert ("the model" in caplog.text) == distrusted


def test_a_check_says_that_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_store, "CHECK_EVERY", 2)
    store = Store()
    assert store.known([]) == Known()
    assert [store.known([segment()]).check for _ in range(4)] == [False, True, False, True]
