"""The endpoints of some Services, from the API server: what the settings name, and the way from the
watching thread to the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from kubernetes import client
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from tandem.errors import StartError
from tandem_router.config import RouterConfig
from tandem_router.core.values import Phase
from tandem_router.discovery.base import Listing, Watchkeeper
from tandem_router.discovery.slice_watch import SliceWatch, Timing

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
STOP_SECONDS = 1.0
"""The thread's time to end. One that is held up in a connect is left behind: it is a daemon."""


class KubernetesDiscovery:
    def __init__(
        self,
        api: client.DiscoveryV1Api,
        *,
        namespace: str,
        services: Mapping[str, Phase | None],
        router_service: str = "",
        timing: Timing | None = None,
    ) -> None:
        self.keeper = Watchkeeper()
        self._api = api
        self._namespace = namespace
        self._services = services
        self._router_service = router_service
        self._timing = timing or Timing()

    async def listings(self) -> AsyncGenerator[Listing]:
        mailbox = _Mailbox()
        watch = SliceWatch(
            self._api,
            namespace=self._namespace,
            services=self._services,
            router_service=self._router_service,
            keeper=self.keeper,
            publish=mailbox.put,
            over=mailbox.end,
            timing=self._timing,
        )
        threading.Thread(target=watch.run, name="discovery", daemon=True).start()
        try:
            while True:
                yield await mailbox.take()
        finally:
            watch.stop()
            with suppress(TimeoutError):
                await asyncio.wait_for(mailbox.over.wait(), STOP_SECONDS)


class _Mailbox:
    """From the thread to the loop: the newest list, which replaces one that nobody took."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        """The thread has ended."""
        self._loop = asyncio.get_running_loop()
        self._filled = asyncio.Event()
        self._listing = Listing()

    def put(self, listing: Listing) -> None:
        self._call(lambda: self._fill(listing))

    def end(self) -> None:
        self._call(self._end)

    async def take(self) -> Listing:
        """Raises RuntimeError where the thread has ended without being asked to."""
        await self._filled.wait()
        self._filled.clear()
        if self.over.is_set():
            raise RuntimeError("the thread of discovery has ended")
        return self._listing

    def _call(self, what: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(what)

    def _fill(self, listing: Listing) -> None:
        self._listing = listing
        self._filled.set()

    def _end(self) -> None:
        self.over.set()
        self._filled.set()


def from_config(config: RouterConfig) -> KubernetesDiscovery:
    """Raises StartError where no cluster or no namespace is known."""
    services = (
        (config.prefill_service, Phase.PREFILL),
        (config.decode_service, Phase.DECODE),
        (config.worker_service, None),
    )
    configuration = _configuration()
    # The watch has its own pauses, and finds a dead connection sooner with TCP's help.
    configuration.retries = False
    configuration.keep_alive = True
    return KubernetesDiscovery(
        client.DiscoveryV1Api(client.ApiClient(configuration)),
        namespace=config.namespace or _own_namespace(),
        services={service: phase for service, phase in services if service},
        router_service=config.router_service if config.decode_routers else "",
    )


def _configuration() -> client.Configuration:
    """The client's configuration: the pod's service account, or the file that KUBECONFIG names."""
    configuration = client.Configuration()
    try:
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    except ConfigException as inside:
        try:
            load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except ConfigException as outside:
            raise StartError(
                "discovery: kubernetes finds no cluster: the router's pod needs its service"
                f" account's token ({inside}), and outside of a pod KUBECONFIG names the cluster"
                f" ({outside})"
            ) from outside
    return configuration


def _own_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise StartError(
            "discovery: kubernetes needs the setting namespace outside of a pod"
        ) from error
