"""What an inference gateway says of a request in headers: whom it is for, and how soon it is due.

The names are those of llm-d's router, and before it of the Gateway API Inference Extension, which
llm-d keeps as aliases. What they say orders requests of one key alone: see docs/router.md, "Whose
turn it is".
"""

from __future__ import annotations

import math
import re
from typing import Final

from tandem.errors import InvalidRequestError
from tandem.prefix_blocks import session_number
from tandem.v1 import router_pb2
from tandem_frontend.http.messages import Call

_Names = tuple[bytes, bytes]
"""The name of today, and the older one."""
FAIRNESS_ID: Final = (b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
FIRST_TOKEN: Final = (b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms")
_OUTPUT_TOKEN: Final = (b"x-llm-d-slo-tpot-ms", b"x-slo-tpot-ms")
_OBJECTIVE: Final = (b"x-llm-d-inference-objective", b"x-gateway-inference-objective")
_DROPPED: Final = (*_OUTPUT_TOKEN, *_OBJECTIVE)
_ALL: Final = frozenset((*FAIRNESS_ID, *FIRST_TOKEN, *_DROPPED))
DROPPED: Final = frozenset(name.decode() for name in _DROPPED)
"""Names of hints that nothing follows here."""
MOST_CHARACTERS: Final = 256
"""How long a fairness id may be."""
_MS: Final = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")


def read_gateway_headers(call: Call, submit: router_pb2.Submit) -> tuple[str, ...]:
    """Tell routers, by `submit`, what the headers say. Returns the names of those that are dropped.
    Raises InvalidRequestError, which names the header, for a value that cannot be used, and for two
    names of one thing that differ: whoever set the one may not know of the other.
    """
    if not call.has_header(_ALL):
        return ()
    name, value = _said(call, FAIRNESS_ID)
    if len(value) > MOST_CHARACTERS:
        raise InvalidRequestError(f"`{name}` has at most {MOST_CHARACTERS} characters", param=name)
    if value:
        submit.fairness = session_number(value.decode("latin-1"))
    submit.first_token_ms = _milliseconds(call, FIRST_TOKEN)
    _milliseconds(call, _OUTPUT_TOKEN)
    return tuple(name.decode() for name in _DROPPED if call.header(name))


def _milliseconds(call: Call, names: _Names) -> int:
    """An objective, rounded up to whole milliseconds; 0: none is said."""
    name, value = _said(call, names)
    if not value:
        return 0
    ms = math.ceil(float(value)) if _MS.fullmatch(value) else 0
    if not ms:
        raise InvalidRequestError(
            f"`{name}` is a number of milliseconds above 0, of nine digits at most", param=name
        )
    return ms


def _said(call: Call, names: _Names) -> tuple[str, bytes]:
    """The header that says a thing, and what it says; both empty: neither of its names is there."""
    said = [(name.decode(), value) for name in names if (value := call.header(name))]
    if len({value for _, value in said}) > 1:
        both = " and ".join(f"`{name}`" for name, _ in said)
        raise InvalidRequestError(f"{both} say different things", param=said[0][0])
    return said[0] if said else ("", b"")
