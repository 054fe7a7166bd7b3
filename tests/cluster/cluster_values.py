"""What the suite's release is installed with: simulated workers, small enough for one node."""

from __future__ import annotations

from typing import Any

PHRASE = "open sesame"
GUARD = f'''
from tandem.hooks.contract import Chunk, Verdict, emit, terminate

class Guard:
    """Stops an answer at a phrase."""

    def __call__(self, chunk: Chunk) -> Verdict:
        if "{PHRASE}" in chunk.text:
            return terminate("cluster_guard")
        return emit(chunk.text_diff)
'''
MONITORING = {"purpose": "monitoring"}
"""Labels of the namespace that may read metrics."""
SMALL = {"requests": {"cpu": "50m", "memory": "96Mi"}}


def component(replicas: int | None, **more: Any) -> dict[str, Any]:
    return {"replicas": replicas, "resources": SMALL, **more}


DECODES = 2
"""Workers that the suite scales decode to, whose number the values leave out."""
BASE: dict[str, Any] = {
    "code": {"files": {"cluster_guard.py": GUARD}},
    "hooks": {"chain": [{"path": "cluster_guard:Guard"}]},
    "frontend": component(2, config={"client_logits_processors": ["forced_sequence"]}),
    "router": component(1),
    "prefill": component(2),
    "decode": component(None),
    "tls": {"controller": {"resources": SMALL}},
    "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": MONITORING}}]},
}
