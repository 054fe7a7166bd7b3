"""Which workers there are, and which of them are this router's. Here is the seam and the choice;
each way to find them is a file beside this one, and `kubernetes` is imported only where it is the
chosen way.
"""

from __future__ import annotations

from tandem.errors import StartError
from tandem_router.config import RouterConfig
from tandem_router.discovery.base import Discovery, Listed, Listing, Trouble, Watchkeeper
from tandem_router.discovery.dns import DnsDiscovery
from tandem_router.discovery.share import Share
from tandem_router.discovery.static import StaticDiscovery

__all__ = [
    "Discovery",
    "Listed",
    "Listing",
    "Share",
    "Trouble",
    "Watchkeeper",
    "make_discovery",
    "make_share",
]


def make_discovery(config: RouterConfig) -> Discovery:
    """Raises StartError where the chosen way cannot begin on this machine."""
    routers = config.routers if config.decode_routers else ()
    if config.discovery == "static":
        peers = [each for each in routers if each != config.own_address]
        return StaticDiscovery(
            prefill=config.prefill, decode=config.decode, aggregated=config.workers, peers=peers
        )
    if config.discovery == "dns":
        return DnsDiscovery(
            prefill=config.prefill,
            decode=config.decode,
            aggregated=config.workers,
            routers=routers,
        )
    try:
        from tandem_router.discovery import kubernetes
    except ImportError as error:
        raise StartError(
            "discovery: kubernetes needs a package that is not installed:"
            " pip install 'tandem-serving[kubernetes]'"
        ) from error
    return kubernetes.from_config(config)


def make_share(config: RouterConfig) -> Share:
    """What of the listed workers is this router's."""
    return Share(
        config.own_address,
        decode_routers=config.decode_routers,
        decode_routers_from=config.decode_routers_from,
    )
