"""docs/api.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from frontend.http import errors as http_errors
from frontend.openai import decoding, openapi, requests
from tandem import errors

TEXT = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "shape",
    [
        requests.ChatRequest,
        requests.CompletionRequest,
        requests.TokenizeRequest,
        requests.DetokenizeRequest,
    ],
)
def test_every_field_is_documented(shape: type[msgspec.Struct]) -> None:
    assert [name for name in shape.__struct_fields__ if f"`{name}`" not in TEXT] == []


def test_every_refused_field_is_documented() -> None:
    assert [name for name in decoding.UNSUPPORTED if f"`{name}`" not in TEXT] == []


def test_every_path_is_documented() -> None:
    paths = [path.replace("{model}", "{id}") for path in openapi.describe()["paths"]]
    assert [path for path in paths if path not in TEXT] == []


def test_every_error_is_documented_with_its_status_and_type() -> None:
    row = re.compile(r"^\| `(\w+)` \| (\d+|–) \| `(\w+)` \|", re.MULTILINE)
    documented = {code: (status, kind) for code, status, kind in row.findall(TEXT)}
    assert http_errors.NotFoundError.code in documented
    real = {cls.code: (str(cls.http_status), cls.kind) for cls in _tree(errors.TandemError)}
    for code in ("cancelled", "slow_client"):  # nobody is left to be told a status
        real[code] = ("–", real[code][1])
    assert documented == real


def _tree(base: type[errors.TandemError]) -> list[type[errors.TandemError]]:
    return [base, *(found for child in base.__subclasses__() for found in _tree(child))]
