"""Which workers there are. Here is the seam and the choice; each way to find them is a file beside
this one, and `kubernetes` is imported only where it is the chosen way.
"""

from __future__ import annotations

from router.config import RouterConfig
from router.discovery.base import Discovery, Listed, Trouble, Watchkeeper
from router.discovery.dns import DnsDiscovery
from router.discovery.static import StaticDiscovery
from tandem.errors import StartError

__all__ = ["Discovery", "Listed", "Trouble", "Watchkeeper", "make_discovery"]


def make_discovery(config: RouterConfig) -> Discovery:
    """Raises StartError where the chosen way cannot begin on this machine."""
    if config.discovery == "static":
        return StaticDiscovery(prefill=config.prefill, decode=config.decode)
    if config.discovery == "dns":
        return DnsDiscovery(prefill=config.prefill, decode=config.decode)
    try:
        from router.discovery import kubernetes
    except ImportError as error:
        raise StartError(
            "discovery: kubernetes needs a package that is not installed:"
            " pip install 'tandem-serving[router]'"
        ) from error
    return kubernetes.from_config(config)
