"""Three ways to make the calls that a chain asks for: at once, in tasks, or in processes. All are
behind the seam of tandem.hooks.deferred.
"""

from __future__ import annotations

from tandem.hooks.chain import Chain
from tandem.hooks.runner.async_ import AsyncRunner
from tandem.hooks.runner.inline import InlineRunner


def in_this_process(chain: Chain) -> InlineRunner | AsyncRunner:
    """The runner for a chain that this process built."""
    return AsyncRunner(chain) if chain.is_async else InlineRunner(chain)
