"""The settings of the audit log: `audit` in a worker's settings file.

audit:
  path: /var/log/tandem/audit.jsonl   # mode 0600; its folder must exist
  content: hash             # hash: an HMAC and the length of each text; none: the length alone;
                            # full: the text itself
  key_file: ""              # the HMACs' key, a secret of at least 16 bytes; empty: a random one
                            # for each process and start
  max_bytes: 67108864       # of one file; then it is rotated: audit.jsonl.1 is the newest old one
  files: 8                  # kept, the current one included
  passes: false             # true: chunks that went through unchanged are written too
  on_full: drop             # what becomes of records that the disk does not take in time:
                            # drop: lost and counted; fail: their requests fail closed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from tandem.settings_file import read_section

Content = Literal["hash", "none", "full"]
LEAST_BYTES = 131_072
"""Enough for the longest line that there can be to fit into a file."""
MOST_FILES = 1000


class AuditSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the audit log holds, and where it is written."""

    path: Annotated[str, Meta(min_length=1)]
    content: Content = "hash"
    key_file: str = ""
    max_bytes: Annotated[int, Meta(ge=LEAST_BYTES)] = 67_108_864
    files: Annotated[int, Meta(ge=1, le=MOST_FILES)] = 8
    passes: bool = False
    on_full: Literal["drop", "fail"] = "drop"


def parse(given: Mapping[str, Any]) -> AuditSettings | None:
    """From the worker's settings: `audit` as above; None for an empty one.

    Raises ConfigError, naming the field.
    """
    return read_section(AuditSettings, "audit", given) if given else None
