"""Read by Schemathesis: a name of a model becomes the served one's, and a short time a long one.
Most requests would ask for a model that is not there, and some would get the 504 they ask for.
"""

from __future__ import annotations

from typing import Any

import schemathesis

from .target import MODEL

_SECONDS = 60.0


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    if not isinstance(case.body, dict):
        return
    if isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL
    timeout = case.body.get("timeout")
    if isinstance(timeout, int | float) and 0 < timeout < _SECONDS:
        case.body["timeout"] = _SECONDS
