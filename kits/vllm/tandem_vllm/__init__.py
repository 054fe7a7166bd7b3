"""vLLM 0.32 as an engine: no attribute of vLLM is replaced.

Nothing of vLLM is imported before an engine starts, so that its environment can be set first and a
worker with another engine does not need it. In vLLM's own process run `connector.py`, which holds
the KV of prefill under leases, and `processor.py`, which edits logits.
"""

from tandem.engine import forms
from tandem.engine.base import EngineKit
from tandem_vllm.engine import VllmEngine
from tandem_vllm.options import Options

__all__ = ["ENGINE", "VllmEngine"]

ENGINE = EngineKit(create=VllmEngine, plan_forms=forms.masked_there, options={"": Options})
