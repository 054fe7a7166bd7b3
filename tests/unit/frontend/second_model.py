"""A second tiny model, whose every token id means another text than the first one's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

CONTEXT_LENGTH = 2048
"""Half of the first one's."""
OPENING = "SECOND: "
"""What its chat template writes before all else."""


def second_model(model_path: Path, folder: Path) -> Path:
    """Made of the first one in `folder`, which is returned. Its ordinary tokens have their ids in
    the opposite order.
    """
    shutil.copytree(model_path, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "model.safetensors").symlink_to(model_path / "model.safetensors")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    added = len(tokenizer["added_tokens"])
    last = len(vocabulary) - 1
    tokenizer["model"]["vocab"] = {
        token: id if id < added else added + last - id for token, id in vocabulary.items()
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = CONTEXT_LENGTH
    (folder / "config.json").write_text(json.dumps(config))
    texts = json.loads((folder / "tokenizer_config.json").read_text())
    texts["chat_template"] = "{{ '" + OPENING + "' }}" + texts["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(texts))
    return folder
