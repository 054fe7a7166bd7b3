"""What differs between the releases of SGLang that this engine runs with: found by looking at the
one that is installed, never by its number. Each fallback says with which release it may go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.errors import StartError
from tandem_sglang import argument_rules

_GROUPS = "attn_dp_size"
"""How many groups share the accelerators for attention, where SGLang has an argument for that."""


def named_for(arguments: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """`arguments` by the names that an SGLang has which knows those. Until 0.5.22 is the oldest:
    dp_size beside enable_dp_attention is deprecated there.
    """
    made = dict(arguments)
    if _GROUPS in known and made.pop("enable_dp_attention", False):
        made[_GROUPS] = made.pop("dp_size")
    return made


def resolved(server_args: Any) -> dict[str, Any]:
    """Every argument as SGLang has resolved it, by the names that Tandem gives. Until 0.5.22 is the
    oldest, whose dp_size stays 1.
    """
    made: dict[str, Any] = server_args.resolved_dict()
    made["dp_size"] *= made.get(_GROUPS, 1)
    return made


def check_known(arguments: Mapping[str, Any], known: frozenset[str], release: str) -> list[str]:
    """The arguments that no table of Tandem's has. Raises StartError for arguments that this
    release of SGLang has not.
    """
    if absent := sorted(arguments.keys() - known):
        raise StartError(
            f"SGLang {release}, which is installed, has no argument {', '.join(absent)}: drop it"
            " from engine option server_args"
        )
    return argument_rules.unlisted(arguments)
