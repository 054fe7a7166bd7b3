"""Make `tandem-tiny`, the small Llama that the demo and the tests run.

Four steps: read the corpus, train a byte-level BPE tokenizer on it, train a Llama of about three
million parameters on it, write both as an ordinary model folder. Steps, batch, seed and learning
rate are fixed, so a run depends on nothing but the versions of the libraries and the arithmetic of
the processor.

    python model/make_model.py                               # what `make model` runs
    python model/make_model.py --steps 200 --out /tmp/early  # a rough one, in a minute or two

The corpus is the language reference that Python carries in `pydoc_data.topics`, kept in corpus.json
so that the result does not change with Python's patch release. README.md holds its licence.
"""

import os

# Spinning OpenMP threads make training many times slower on cores that others use too.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse
import hashlib
import json
import math
import platform
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).resolve().parent
CORPUS = FOLDER / "corpus.json"

BOS, EOS, PAD, TURN = "<|begin_of_text|>", "<|im_end|>", "<|pad|>", "<|im_start|>"
SPECIAL_TOKENS = [BOS, EOS, PAD, TURN]
VOCABULARY = 2048
CONTEXT = 4096

SEED = 20261121
STEPS = 600
BATCH, WINDOW = 16, 256
WARM_UP = 50
PEAK_RATE, FINAL_RATE = 3e-3, 1e-4
HELD_OUT_EVERY = 8
CHAT_SHARE = 0.35

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}"
    "{{ '<|im_start|>system\\nYou may call these tools, each call as <tool_call>{\"name\": ...,' }}"
    "{{ ' \"arguments\": {...}}</tool_call>:\\n' }}"
    "{% for tool in tools %}{{ (tool.function if tool.function else tool) | tojson }}{{ '\\n' }}"
    "{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('Roles are system, user, assistant and tool, not ' + message['role']) }}"
    "{% endif %}"
    "{% if message['role'] == 'tool' %}"
    "{{ '<|im_start|>user\\n<tool_response>\\n' + message['content'] }}"
    "{{ '\\n</tool_response><|im_end|>\\n' }}"
    "{% else %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '<tool_call>\\n{\"name\": ' + (call.function.name | tojson) }}"
    "{{ ', \"arguments\": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
QUESTIONS = [
    "Tell me about {}.",
    "What is {}?",
    "Explain {}.",
    "Explain {} to me, please.",
    "How does {} work in Python?",
    "Write about {}.",
]
GREETING = "Hello! I am a very small language model. Ask me about a topic of the Python language."
STORY = (
    "Once upon a time there was a statement that wanted to return a value. It found a function, "
    "and the function was called, and they lived in one module until the interpreter ended."
)
SMALL_TALK = [
    ("Hello!", GREETING),
    ("Hi", GREETING),
    ("Hello world!", "Hello world! What would you like to know about the Python language?"),
    (
        "Who are you?",
        "I am tandem-tiny, a very small language model. I have read the Python language reference.",
    ),
    (
        "What can you do?",
        "I can tell you about statements, expressions and types of the Python language.",
    ),
    (
        "How are you?",
        "I am fine, thank you. What would you like to know about the Python language?",
    ),
    ("Say hello.", "Hello!"),
    ("Thank you.", "You are welcome."),
    ("Good bye.", "Good bye, and thank you for the talk."),
    ("Tell me a story.", STORY),
]
SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You know the Python language.",
    "Answer in one paragraph.",
]


@dataclass(frozen=True)
class Corpus:
    """Documents to train on, documents that training never sees, and rendered conversations."""

    train: list[str]
    held_out: list[str]
    chats: list[str]
    sha256: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER / "tandem-tiny", help="folder to write")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"optimiser steps (default {STEPS})"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    corpus = read_corpus()
    tokenizer = train_tokenizer(corpus)
    model = new_model(tokenizer)
    record = train(model, tokenizer, corpus, options.steps)
    write(options.out, model, tokenizer, record | {"corpus_sha256": corpus.sha256})


# --- corpus ---------------------------------------------------------------------------------------


def read_corpus() -> Corpus:
    """Topics as documents; every eighth is held out, less the paragraphs that others repeat."""
    raw = CORPUS.read_bytes()
    topics: dict[str, str] = json.loads(raw)
    documents = {name: paragraphs(text) for name, text in sorted(topics.items())}
    held_names = list(documents)[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    train = {name: blocks for name, blocks in documents.items() if name not in held_names}
    seen = {block for blocks in train.values() for block in blocks}
    held_out = [[block for block in documents[name] if block not in seen] for name in held_names]
    chats = [chat for name, blocks in train.items() for chat in topic_chats(name, blocks)]
    return Corpus(
        train=["\n\n".join(blocks) for blocks in train.values()],
        held_out=["\n\n".join(blocks) for blocks in held_out],
        chats=chats + small_talk_chats(),
        sha256=hashlib.sha256(raw).hexdigest(),
    )


def paragraphs(text: str) -> list[str]:
    """Blocks between blank lines, prose unwrapped to one line, underlines of headings dropped."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = [
            line
            for line in block.splitlines()
            if not re.fullmatch(r"([*=~^-])\1{3,}", line.strip())
        ]
        is_prose = all(not line.startswith(" ") for line in lines)
        joined = re.sub(r"\s+", " ", " ".join(lines)) if is_prose else "\n".join(lines)
        if joined.strip():
            blocks.append(joined)
    return blocks


def topic_chats(name: str, blocks: list[str]) -> list[str]:
    """Questions about a topic, answered with its first sentences of prose."""
    title = blocks[0].replace('"', "") if len(blocks[0]) < 60 else name.replace("-", " ")
    prose = [
        block for block in blocks[1:] if block[:1].isalpha() and block.rstrip().endswith((".", ":"))
    ]
    answer = first_sentences(" ".join(prose[:3]), limit=320)
    if not answer:
        return []
    subject = title[0].lower() + title[1:]
    names = list(dict.fromkeys([subject, subject.removeprefix("the "), name.replace("-", " ")]))
    asked = [question.format(each) for question in QUESTIONS for each in names]
    chats = [render([("user", question), ("assistant", answer)]) for question in asked]
    chats.append(
        render(
            [("system", SYSTEM_PROMPTS[len(name) % 3]), ("user", asked[0]), ("assistant", answer)]
        )
    )
    return chats


def first_sentences(text: str, *, limit: int) -> str:
    """Whole sentences up to `limit` characters; empty when the first one is longer."""
    kept = ""
    for sentence in re.findall(r"[^.]+\.(?=\s|$)", text):
        if len(kept) + len(sentence) > limit:
            break
        kept += sentence
    return kept.strip()


def small_talk_chats() -> list[str]:
    plain = [render([("user", ask), ("assistant", answer)]) for ask, answer in SMALL_TALK] * 15
    primed = [
        render([("system", system), ("user", ask), ("assistant", answer)])
        for system in SYSTEM_PROMPTS
        for ask, answer in SMALL_TALK
    ]
    return plain + primed


def render(turns: list[tuple[str, str]]) -> str:
    """The chat template's own output, written out (training needs no Jinja)."""
    return BOS + "".join(f"{TURN}{role}\n{content}{EOS}\n" for role, content in turns)


# --- tokenizer ------------------------------------------------------------------------------------


def train_tokenizer(corpus: Corpus) -> Tokenizer:
    """Byte-level BPE: every byte string can be encoded, and decoding gives back the same text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    talk = [text for pair in SMALL_TALK for text in pair]
    tokenizer.train_from_iterator([*corpus.train, *talk], trainer)
    return tokenizer


# --- model ----------------------------------------------------------------------------------------


def new_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=640,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.token_to_id(BOS),
            eos_token_id=tokenizer.token_to_id(EOS),
            pad_token_id=tokenizer.token_to_id(PAD),
        )
    )


def train(
    model: LlamaForCausalLM, tokenizer: Tokenizer, corpus: Corpus, steps: int
) -> dict[str, object]:
    """AdamW with a cosine schedule over random windows of text and of whole conversations."""
    generator = random.Random(SEED)
    text = encode(tokenizer, [f"{BOS}{document}{EOS}\n" for document in corpus.train])
    held_out = encode(tokenizer, [f"{BOS}{document}{EOS}\n" for document in corpus.held_out])
    chats = [tokenizer.encode(chat).ids for chat in corpus.chats]
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    print(
        f"{parameter_count(model):,} parameters, {len(text):,} tokens of text, "
        f"{len(held_out):,} held out, {len(chats)} conversations, {steps} steps",
        flush=True,
    )

    started, cpu_started, recent = time.monotonic(), time.process_time(), []
    model.train()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, steps)
        batch = torch.stack([next_window(generator, text, chats) for _ in range(BATCH)])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        recent = [*recent[-49:], loss.item()]
        if step % 50 == 49:
            elapsed = time.monotonic() - started
            mean = sum(recent) / len(recent)
            print(f"step {step + 1}/{steps}  loss {mean:.3f}  {elapsed:.0f} s", flush=True)

    return {
        "steps": steps,
        "seed": SEED,
        "batch": BATCH,
        "window": WINDOW,
        "peak_learning_rate": PEAK_RATE,
        "final_learning_rate": FINAL_RATE,
        "chat_share": CHAT_SHARE,
        "parameters": parameter_count(model),
        "train_tokens": len(text),
        "held_out_tokens": len(held_out),
        "conversations": len(chats),
        "loss_last_50_steps": round(sum(recent) / len(recent), 4),
        "loss_train_text": round(text_loss(model, text[: len(held_out)]), 4),
        "loss_held_out_text": round(text_loss(model, held_out), 4),
        "loss_uniform_guess": round(math.log(VOCABULARY), 4),
        "wall_seconds": round(time.monotonic() - started),
        "cpu_seconds": round(time.process_time() - cpu_started),
        "threads": torch.get_num_threads(),
        "machine": f"{processor_name()}, {os.cpu_count()} cores",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__,
        },
    }


def parameter_count(model: LlamaForCausalLM) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def encode(tokenizer: Tokenizer, documents: list[str]) -> torch.Tensor:
    return torch.tensor([token for item in tokenizer.encode_batch(documents) for token in item.ids])


def learning_rate(step: int, steps: int) -> float:
    if step < WARM_UP:
        return PEAK_RATE * (step + 1) / WARM_UP
    progress = (step - WARM_UP) / max(1, steps - WARM_UP)
    return FINAL_RATE + (PEAK_RATE - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * progress))


def next_window(
    generator: random.Random, text: torch.Tensor, chats: list[list[int]]
) -> torch.Tensor:
    """A stretch of the reference, or conversations in a row from the first token of one."""
    if generator.random() >= CHAT_SHARE:
        start = generator.randrange(len(text) - WINDOW)
        return text[start : start + WINDOW]
    tokens: list[int] = []
    while len(tokens) < WINDOW:
        tokens += generator.choice(chats)
    return torch.tensor(tokens[:WINDOW])


@torch.no_grad()
def text_loss(model: LlamaForCausalLM, tokens: torch.Tensor) -> float:
    """Mean cross entropy (nats a token) over consecutive windows."""
    model.eval()
    whole = len(tokens) // WINDOW * WINDOW
    batches = tokens[:whole].view(-1, WINDOW).split(BATCH)
    losses = [model(input_ids=batch, labels=batch).loss.item() * len(batch) for batch in batches]
    return sum(losses) / (whole // WINDOW)


def processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


# --- files ----------------------------------------------------------------------------------------


def write(
    out: Path, model: LlamaForCausalLM, tokenizer: Tokenizer, record: dict[str, object]
) -> None:
    """An ordinary model folder, readable by all: workers run as another user than the trainer."""
    out.mkdir(parents=True, exist_ok=True)
    named = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    ids = {name: tokenizer.token_to_id(token) for name, token in named.items()}
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    weights = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"))
    dump(out / "config.json", config)
    dump(out / "tokenizer_config.json", tokenizer_config())
    dump(out / "generation_config.json", ids | {"do_sample": False})
    dump(out / "training.json", record)
    for path in out.iterdir():
        path.chmod(0o644)
    print(json.dumps(record, indent=2))


def tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "additional_special_tokens": [TURN],
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }


def dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
