"""Instructor: objects by a tool that must be called, and by JSON."""

from __future__ import annotations

import instructor
import pytest
from openai import OpenAI
from pydantic import BaseModel

from conftest import Server


class Place(BaseModel):
    name: str
    people: int


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_structured(server: Server, mode: instructor.Mode) -> None:
    client = OpenAI(base_url=server.v1, api_key=server.key, max_retries=0)
    made = instructor.from_openai(client, mode=mode).chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": "Hello"}],
        response_model=Place,
        max_retries=0,
    )
    assert made.model_dump() == {"name": "Bern", "people": 20}  # it is of a subclass
