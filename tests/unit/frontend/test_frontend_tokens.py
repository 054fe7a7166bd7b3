"""Tokenizers and chat templates as model folders bring them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, models

from tandem.errors import ConfigError, InvalidRequestError
from tandem_frontend.openai import chat_template
from tandem_frontend.openai.chat_template import ChatTemplate
from tandem_frontend.openai.conversation import ChatMessage
from tandem_frontend.openai.tokenizer import ModelTokenizer

TEXT = "Grüße 世界 🎉\n\ttabs and  spaces"
Folder = Callable[..., Path]


@pytest.fixture
def folder(model_path: Path, tmp_path: Path) -> Folder:
    """A copy of the model's folder without its weights, with files added or replaced."""

    def make(**files: str) -> Path:
        for path in model_path.iterdir():
            if path.suffix == ".json":
                shutil.copy(path, tmp_path)
        for name, content in files.items():
            (tmp_path / name.replace("__", ".")).write_text(content)
        return tmp_path

    return make


async def test_token_bytes_join_to_exactly_the_text_that_was_encoded(model_path: Path) -> None:
    tokenizer = ModelTokenizer(model_path)
    ids = tokenizer.encode(TEXT + "<|im_end|>", add_special_tokens=True)
    pieces = [tokenizer.token_bytes(token_id) for token_id in ids]
    assert b"".join(pieces).decode() == TEXT + "<|im_end|>"
    assert any(not _is_text(piece) for piece in pieces)  # characters are split over tokens
    assert tokenizer.token_bytes(10**6) == b""


async def test_a_tokenizer_that_is_not_byte_level_is_decoded_token_by_token(
    folder: Folder,
) -> None:
    encoder = Encoder(models.WordPiece({"[UNK]": 0, "he": 1, "##llo": 2}, unk_token="[UNK]"))
    encoder.decoder = decoders.WordPiece()
    tokenizer = ModelTokenizer(folder(tokenizer__json=encoder.to_str()))
    assert tokenizer.encode("hello", add_special_tokens=True) == [1, 2]
    assert tokenizer.token_bytes(1) == b"he"


async def test_padding_and_truncation_of_the_file_do_not_touch_prompts(
    folder: Folder, model_path: Path
) -> None:
    content = json.loads((model_path / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    tokenizer = ModelTokenizer(folder(tokenizer__json=json.dumps(content)))
    assert len(tokenizer.encode("one two three four", add_special_tokens=True)) > 2


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"version": "9"}'])
def test_a_broken_tokenizer_file_stops_the_start_naming_it(folder: Folder, content: str) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        ModelTokenizer(folder(tokenizer__json=content))


def test_a_template_file_goes_before_the_configuration(folder: Folder) -> None:
    found = chat_template.load(folder(chat_template__jinja="{{ messages[0].content }}!"))
    assert found is not None
    assert found.render([USER]) == "x!"


def test_the_default_of_several_templates_is_used_with_special_tokens(folder: Folder) -> None:
    config = {
        "bos_token": {"content": "<s>", "special": True},
        "chat_template": [
            {"name": "tool_use", "template": "no"},
            {"name": "default", "template": "{{ bos_token }}{{ messages[0]['content'] }}"},
        ],
    }
    found = chat_template.load(folder(tokenizer_config__json=json.dumps(config)))
    assert found is not None
    assert found.render([USER]) == "<s>x"


def test_a_model_may_have_no_template(folder: Folder) -> None:
    assert chat_template.load(folder(tokenizer_config__json="{}")) is None


@pytest.mark.parametrize("content", ["[1]", "{"])
def test_a_broken_tokenizer_configuration_stops_the_start(folder: Folder, content: str) -> None:
    with pytest.raises(ConfigError, match="tokenizer_config"):
        chat_template.load(folder(tokenizer_config__json=content))


def test_a_malformed_template_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="malformed"):
        ChatTemplate("{% if %}", {})


USER = ChatMessage(role="user", content="x")
RENDERED: list[tuple[str, str]] = [
    (
        "{% for m in messages %}{% if loop.index0 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
        "user",
    ),
    ("  {% if true %}\n  x\n  {% endif %}", "  x\n"),
    ("{{ messages[0] | tojson }}", '{"role": "user", "content": "<ü>"}'),
    ("{{ strftime_now('%Y') | length }}", "4"),
    ("{{ messages[0].content }}", "<ü>"),
]


@pytest.mark.parametrize(("source", "text"), RENDERED)
def test_templates_render_as_hugging_face_renders_them(source: str, text: str) -> None:
    messages = [ChatMessage(role="user", content="<ü>"), ChatMessage(role="assistant", content="y")]
    assert ChatTemplate(source, {}).render(messages) == text


@pytest.mark.promise("S6-145")
@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].nothing.more }}",
        "{{ messages[0].content + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_fails_or_escapes_refuses_the_request(source: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(source, {}).render([USER])
    assert caught.value.param == "messages"


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


async def test_a_model_without_a_template_refuses_chats_and_serves_completions(
    start: Any, folder: Folder
) -> None:
    from harness import say_hello

    frontend = await start(
        say_hello,
        model_path=str(folder(tokenizer_config__json="{}")),
        served_model_name="tandem-tiny",
    )
    response = await frontend.chat()
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
    assert (await frontend.complete()).status_code == 200
