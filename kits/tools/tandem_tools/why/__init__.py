"""`tandem why`: where the time of a request went, and what each wait was for."""

from __future__ import annotations

from tandem_tools.why.command import COMMAND as COMMAND
