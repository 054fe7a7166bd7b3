"""SGLang as an engine: the only importer of sglang and torch.

Nothing of SGLang is imported before an engine starts, so that its environment can be set first and
a worker with another engine does not need it.
"""

from tandem.engine.base import EngineKit
from tandem_sglang import forms
from tandem_sglang.engine import SglangEngine
from tandem_sglang.follower import SglangFollower
from tandem_sglang.joined import SglangJoined
from tandem_sglang.options import Options

__all__ = ["ENGINE", "SglangEngine", "SglangFollower", "SglangJoined"]

ENGINE = EngineKit(
    create=SglangEngine,
    plan_forms=forms.plan,
    follow=SglangFollower,
    join=SglangJoined,
    options={"": Options},
)
