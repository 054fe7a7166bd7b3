"""SGLang 0.5.21 as an engine: the only importer of sglang and torch.

Nothing of SGLang is imported before an engine starts, so that its environment can be set first and
a worker with another engine does not need it.
"""

from tandem.engine.sglang.engine import SglangEngine
from tandem.engine.sglang.follower import SglangFollower
from tandem.engine.sglang.joined import SglangJoined

__all__ = ["SglangEngine", "SglangFollower", "SglangJoined"]
