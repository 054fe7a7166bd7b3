"""The kit's dialects, as its entry point names them."""

from __future__ import annotations

from tandem_answers.messages.dialect import MESSAGES
from tandem_answers.responses.dialect import RESPONSES

DIALECTS = (RESPONSES, MESSAGES)
