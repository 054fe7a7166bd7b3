"""Files of a model whose tokenizer puts something around a text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

MODEL = Path(__file__).resolve().parents[3] / "model" / "tandem-tiny"
AROUND = {
    "nothing": "$A",
    "a beginning": "<|begin_of_text|> $A",
    "both": "<|begin_of_text|> $A <|im_end|> <|pad|>",
    "the text again": "$A <|im_end|> $A",
}


def puts_around(folder: Path, what: str) -> None:
    """Fill a folder with a model's files, but no weights. `what`: one of AROUND."""
    for path in MODEL.glob("*.json"):
        shutil.copy(path, folder)
    path = folder / "tokenizer.json"
    files = json.loads(path.read_text())
    ids = {token["content"]: token["id"] for token in files["added_tokens"]}
    pieces = AROUND[what].split()
    files["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}}
            if piece == "$A"
            else {"SpecialToken": {"id": piece, "type_id": 0}}
            for piece in pieces
        ],
        "pair": [],
        "special_tokens": {
            piece: {"id": piece, "ids": [ids[piece]], "tokens": [piece]}
            for piece in pieces
            if piece != "$A"
        },
    }
    path.write_text(json.dumps(files))
