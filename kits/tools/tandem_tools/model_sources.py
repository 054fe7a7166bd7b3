"""Where models come from: what a source is, which of its files serve, and folders as a source."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.engine import lora
from tandem_tools.model_folder import FetchError, ModelFolder

TOKENIZER = frozenset(
    (
        "added_tokens.json",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    )
)
ADAPTER = (lora.CONFIG, lora.WEIGHTS)
_SAFETENSORS = ".safetensors"
_OTHER_WEIGHTS = (".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".pt", ".pth")
_NO_PART = (".md", ".png", ".jpg", ".pdf", ".gitattributes", ".gitignore")


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a source, name -> size in bytes, at one commit ("" where it has none)."""

    files: Mapping[str, int]
    commit: str = ""


def wanted(
    names: Iterable[str], *, only_tokenizer: bool = False, adapter: bool = False
) -> list[str]:
    """The files that serve: those at the top, and weights in one format only; of a LoRA adapter,
    which workers know by two, these alone. Raises FetchError where what is needed is missing.
    """
    names = list(names)
    if adapter:
        if missing := [name for name in ADAPTER if name not in names]:
            raise FetchError(
                f"the source holds no LoRA adapter in PEFT's layout: no {', '.join(missing)}"
            )
        return list(ADAPTER)
    top = [name for name in names if "/" not in name and not name.endswith(_NO_PART)]
    if only_tokenizer:
        chosen = [name for name in top if name in TOKENIZER]
    elif any(name.endswith(_SAFETENSORS) for name in top):
        chosen = [name for name in top if not name.endswith(_OTHER_WEIGHTS)]
    else:
        chosen = top
    needed = ["config.json", "tokenizer.json"]
    if missing := [name for name in needed if name not in chosen]:
        raise FetchError(f"the source holds no model that can be served: no {', '.join(missing)}")
    weights = (_SAFETENSORS, *_OTHER_WEIGHTS)
    if not only_tokenizer and not any(name.endswith(weights) for name in chosen):
        raise FetchError("the source holds no model that can be served: no weights")
    return sorted(chosen)


class Folder:
    """file:// : a folder of this machine. Every source lists its files, and brings each whole or
    not at all, again if asked; it raises FetchError, or OSError where the volume refuses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def listing(self) -> SourceFiles:
        try:
            files = [each for each in self._path.iterdir() if each.is_file()]
            return SourceFiles({each.name: each.stat().st_size for each in files})
        except OSError as error:
            raise FetchError(f"cannot read {self._path}: {error.strerror}") from error

    def bring(self, names: Collection[str], commit: str, folder: ModelFolder) -> None:
        for name in names:
            partial = folder.work / f"{name}.{secrets.token_hex(4)}.incomplete"
            shutil.copyfile(self._path / name, partial)
            partial.replace(folder.path / name)
