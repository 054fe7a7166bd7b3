"""The tiny model of Tandem: a folder as models of Hugging Face have it."""

from pathlib import Path
from typing import Final

MODEL: Final = Path(__file__).resolve().parent / "tandem-tiny"
"""The model's folder: weights, configuration, tokenizer and chat template."""
