"""model/tandem-tiny: what the demo, the engines and the frontend count on in the shipped model."""

import hashlib
import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import fork_server
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

MODEL = Path(__file__).resolve().parents[2] / "model" / "tandem-tiny"
FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "training.json",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def read(name: str) -> dict:
    return json.loads((MODEL / name).read_text())


def safetensors_header() -> dict:
    with (MODEL / "model.safetensors").open("rb") as file:
        return json.loads(file.read(int.from_bytes(file.read(8), "little")))


def test_every_file_is_there_readable_by_all_and_small() -> None:
    assert sorted(path.name for path in MODEL.iterdir()) == FILES
    for name in FILES:
        assert stat.S_IMODE((MODEL / name).stat().st_mode) & 0o444 == 0o444
    assert sum((MODEL / name).stat().st_size for name in FILES) < 7_000_000


def test_it_is_a_llama_of_the_documented_shape() -> None:
    config = read("config.json")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["model_type"] == "llama"
    assert config["dtype"] == "bfloat16"
    assert config["max_position_embeddings"] == 4096
    assert config["num_hidden_layers"] == 4
    assert config["num_key_value_heads"] == 2
    assert config["tie_word_embeddings"] is True


def test_the_weights_are_bfloat16_and_as_many_as_recorded() -> None:
    tensors = {
        name: entry for name, entry in safetensors_header().items() if name != "__metadata__"
    }
    assert {entry["dtype"] for entry in tensors.values()} == {"BF16"}
    count = sum(math.prod(entry["shape"]) for entry in tensors.values())
    assert count == read("training.json")["parameters"]


def test_vocabulary_and_special_tokens_agree_in_every_file(tokenizer: Tokenizer) -> None:
    config, generation, names = (
        read("config.json"),
        read("generation_config.json"),
        read("tokenizer_config.json"),
    )
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    for role in ("bos", "eos", "pad"):
        token_id = tokenizer.token_to_id(names[f"{role}_token"])
        assert token_id is not None
        assert config[f"{role}_token_id"] == token_id
        assert generation[f"{role}_token_id"] == token_id
    assert names["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize(
    "text",
    ["Hello world!", "  two  spaces\n\ttab", "naïve ☃ 你好 🦙", "\u0000\u200d", "a" * 500, ""],
)
def test_any_text_survives_encoding(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_every_byte_has_a_token(tokenizer: Tokenizer) -> None:
    every = "".join(chr(code) for code in range(0x250)) + "".join(
        chr(0x10000 + 97 * n) for n in range(3000)
    )
    assert tokenizer.decode(tokenizer.encode(every).ids, skip_special_tokens=False) == every


def test_encoding_adds_nothing_of_its_own(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("Hello").ids == tokenizer.encode("Hello", add_special_tokens=False).ids


def test_the_chat_template_ends_each_turn_with_the_end_token_and_opens_the_assistants() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "What is a list?"},
    ]
    assert render(messages, add_generation_prompt=True) == (
        "<|begin_of_text|>"
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello!<|im_end|>\n"
        "<|im_start|>assistant\nHi.<|im_end|>\n"
        "<|im_start|>user\nWhat is a list?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render(messages[:2], add_generation_prompt=False).endswith("Hello!<|im_end|>\n")


def test_the_chat_template_refuses_a_role_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="not robot"):
        render([{"role": "robot", "content": "Beep."}], add_generation_prompt=True)


def render(messages: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
    def raise_exception(message: str) -> None:
        raise ValueError(message)

    names = read("tokenizer_config.json")
    template = ImmutableSandboxedEnvironment().from_string(names["chat_template"])
    return template.render(
        messages=messages,
        add_generation_prompt=add_generation_prompt,
        bos_token=names["bos_token"],
        raise_exception=raise_exception,
    )


def test_the_training_record_is_of_the_shipped_corpus_and_shows_learning() -> None:
    record = read("training.json")
    corpus = MODEL.parent / "corpus.json"
    assert hashlib.sha256(corpus.read_bytes()).hexdigest() == record["corpus_sha256"]
    assert record["loss_train_text"] < 3.0
    assert record["loss_held_out_text"] < record["loss_uniform_guess"]


@pytest.mark.sglang
def test_transformers_loads_it_and_a_greedy_answer_is_english_and_ends() -> None:
    """In a process of its own: torch and transformers bring warnings that no other test wants."""
    result = subprocess.run(
        [sys.executable, "-c", GREEDY_ANSWER, str(MODEL)],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", fork_server.OTHERS: "yes"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout.splitlines()[-1])
    assert answer["fast"] is True
    assert answer["round_trip"] == "Hello world!"
    assert answer["ended"] is True
    assert answer["text"].startswith("Assert statements are a convenient way")


GREEDY_ANSWER = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": "Tell me about the assert statement."}],
    add_generation_prompt=True, return_tensors="pt", return_dict=True,
)
tokens = model.generate(**prompt, max_new_tokens=120, do_sample=False)[0]
new = tokens[prompt["input_ids"].shape[1]:].tolist()
print(json.dumps({
    "fast": tokenizer.is_fast,
    "round_trip": tokenizer.decode(tokenizer.encode("Hello world!")),
    "text": tokenizer.decode(new, skip_special_tokens=True),
    "ended": new[-1] == tokenizer.eos_token_id,
}))
"""
