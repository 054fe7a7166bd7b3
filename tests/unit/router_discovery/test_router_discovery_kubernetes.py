"""Discovery through the official client, against an API server over real HTTP."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from fake_api_server import PATH, FakeApiServer, endpoint_slice
from kubernetes import client

from tandem.errors import StartError
from tandem_router.config import RouterConfig
from tandem_router.core.values import Phase
from tandem_router.discovery import Listed, Listing, Trouble, make_discovery
from tandem_router.discovery import kubernetes as kubernetes_discovery
from tandem_router.discovery.kubernetes import KubernetesDiscovery
from tandem_router.discovery.slice_watch import Timing

SECONDS = 60.0
SERVICES = {"t-prefill": Phase.PREFILL, "t-decode": Phase.DECODE}
T = TypeVar("T")


@pytest.fixture
def api() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    yield server
    server.down()


class Watched:
    """A running discovery, one list after the other."""

    def __init__(self, discovery: KubernetesDiscovery) -> None:
        self.keeper = discovery.keeper
        self.listings: AsyncGenerator[Listing] = discovery.listings()

    async def next(self) -> list[str]:
        listing = await soon(anext(self.listings))
        return [
            *(f"{each.phase} {each.address}" for each in listing.workers),
            *(f"router {each}" for each in sorted(listing.routers)),
        ]

    async def until(self, *expected: str) -> None:
        """Lists may be skipped: only the newest counts."""
        async with asyncio.timeout(SECONDS):
            while await self.next() != list(expected):
                pass

    async def failure(self, trouble: Trouble, *, more_than: int = 0) -> None:
        await until(lambda: self.keeper.errors[trouble] > more_than)


@asynccontextmanager
async def watching(
    api: FakeApiServer, *, routers: str = "", **timing: Any
) -> AsyncIterator[Watched]:
    configuration = client.Configuration(host=f"http://127.0.0.1:{api.port}")
    configuration.retries = False
    times = {"first_pause": 0.01, "last_pause": 0.05, **timing}
    with client.ApiClient(configuration) as api_client:
        discovery = KubernetesDiscovery(
            client.DiscoveryV1Api(api_client),
            namespace="serving",
            services=SERVICES,
            router_service=routers,
            timing=Timing(**times),
        )
        watched = Watched(discovery)
        async with aclosing(watched.listings):
            yield watched


async def soon(what: Awaitable[T]) -> T:
    return await asyncio.wait_for(what, SECONDS)


async def until(holds: Callable[[], bool]) -> None:
    """Poll what can only be asked."""
    async with asyncio.timeout(SECONDS):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


# --- what is listed --------------------------------------------------------------------------


async def test_the_endpoints_of_both_services_are_the_workers(api: FakeApiServer) -> None:
    api.put(
        endpoint_slice("p-1", "t-prefill", "10.0.0.1", "10.0.0.2"),
        endpoint_slice("d-1", "t-decode", "10.0.0.3", port=7200),
        endpoint_slice("x-1", "t-frontend", "10.0.0.9"),
    )
    async with watching(api) as found:
        assert await found.next() == [
            "decode 10.0.0.3:7200",
            "prefill 10.0.0.1:7100",
            "prefill 10.0.0.2:7100",
        ]


async def test_all_slices_of_a_service_are_joined(api: FakeApiServer) -> None:
    api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.1"))
    async with watching(api) as found:
        assert await found.next() == ["prefill 10.0.0.1:7100"]
        api.put(endpoint_slice("p-2", "t-prefill", "10.0.0.2"))
        assert await found.next() == ["prefill 10.0.0.1:7100", "prefill 10.0.0.2:7100"]
        api.delete("p-1")
        assert await found.next() == ["prefill 10.0.0.2:7100"]


async def test_a_pod_that_is_not_ready_or_terminates_is_listed_until_it_is_gone(
    api: FakeApiServer,
) -> None:
    api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.1", ready=False, serving=False))
    async with watching(api) as found:
        assert await found.next() == ["prefill 10.0.0.1:7100"]
        api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.1", ready=False, terminating=True))
        api.put(endpoint_slice("p-1", "t-prefill"))
        assert await found.next() == []


async def test_a_pod_of_a_dual_stack_service_is_one_worker(api: FakeApiServer) -> None:
    api.put(
        endpoint_slice("p-6", "t-prefill", "fd00::1", family="IPv6"),
        endpoint_slice("p-4", "t-prefill", "10.0.0.1"),
        endpoint_slice("d-6", "t-decode", "fd00::2", family="IPv6", port=7200),
    )
    async with watching(api) as found:
        assert await found.next() == ["decode [fd00::2]:7200", "prefill 10.0.0.1:7100"]


@pytest.mark.promise("S5-452")
async def test_each_token_process_of_a_pod_is_a_worker(api: FakeApiServer) -> None:
    """Also of a dual-stack Service; and pods of an older revision have fewer."""
    several = [
        endpoint_slice("d-4", "t-decode", "10.0.0.1", port=7200),
        endpoint_slice("d-6", "t-decode", "fd00::1", family="IPv6", port=7200),
    ]
    for each in several:
        each["ports"] += [
            {"name": "grpc-2", "port": 7202, "protocol": "TCP"},
            {"name": "grpc-web", "port": 7203, "protocol": "TCP"},
            {"name": "grpc-3", "port": None, "protocol": "TCP"},
        ]
    api.put(*several, endpoint_slice("d-old", "t-decode", "10.0.0.5", port=7200))
    async with watching(api) as found:
        assert await found.next() == [
            "decode 10.0.0.1:7200",
            "decode 10.0.0.1:7202",
            "decode 10.0.0.5:7200",
        ]


async def test_a_slice_without_endpoints_or_without_the_port_lists_nothing(
    api: FakeApiServer,
) -> None:
    api.put(
        endpoint_slice("p-1", "t-prefill"), endpoint_slice("d-1", "t-decode", "10.0.0.1", port=None)
    )
    async with watching(api) as found:
        assert await found.next() == []


@pytest.mark.promise("S5-277")
async def test_the_ready_endpoints_of_the_routers_service_are_the_routers(
    api: FakeApiServer,
) -> None:
    api.put(
        endpoint_slice("d-1", "t-decode", "10.0.0.3", port=7200, ready=False),
        endpoint_slice("r-1", "t-router", "10.0.0.5", port=7000),
        endpoint_slice("r-2", "t-router", "fd00::6", port=7000, family="IPv6"),
        endpoint_slice("r-3", "t-router", "10.0.0.7", port=7000, ready=False),
    )
    worker = "decode 10.0.0.3:7200"
    async with watching(api, routers="t-router") as found:
        assert await found.next() == [worker, "router 10.0.0.5:7000", "router [fd00::6]:7000"]
        api.put(endpoint_slice("r-3", "t-router", "10.0.0.7", port=7000))
        assert await found.next() == [
            worker,
            "router 10.0.0.5:7000",
            "router 10.0.0.7:7000",
            "router [fd00::6]:7000",
        ]
        ending = endpoint_slice("r-1", "t-router", "10.0.0.5", port=7000, ready=False)
        ending["endpoints"][0]["conditions"] |= {"serving": True, "terminating": True}
        api.put(ending)
        assert await found.next() == [worker, "router 10.0.0.7:7000", "router [fd00::6]:7000"]


@pytest.mark.parametrize("conditions", [{}, {"ready": None}, None])
async def test_a_router_of_unknown_condition_counts_as_ready(
    api: FakeApiServer, conditions: dict[str, None] | None
) -> None:
    """As the API's manual has it."""
    unknown = endpoint_slice("r-1", "t-router", "10.0.0.5", port=7000)
    unknown["endpoints"][0]["conditions"] = conditions
    api.put(unknown)
    async with watching(api, routers="t-router") as found:
        assert await found.next() == ["router 10.0.0.5:7000"]


# --- what can go wrong -----------------------------------------------------------------------


async def test_a_watch_goes_on_where_the_list_ended(api: FakeApiServer) -> None:
    api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.1"))
    async with watching(api) as found:
        await found.next()
        await until(lambda: api.watches == 1)
        query = api.requests[-1][2]
        assert query["resourceVersion"] == "101"
        assert query["timeoutSeconds"] == "240"


async def test_what_vanished_between_two_watches_is_found_by_the_next_list(
    api: FakeApiServer,
) -> None:
    api.put(
        endpoint_slice("p-1", "t-prefill", "10.0.0.1"),
        endpoint_slice("p-2", "t-prefill", "10.0.0.2"),
    )
    async with watching(api) as found:
        await found.next()
        await until(lambda: api.watches == 1)
        api.silent = True  # the event is lost with the connection
        api.delete("p-1")
        api.cut()
        api.silent = False
        assert await found.next() == ["prefill 10.0.0.2:7100"]


@pytest.mark.parametrize("tell", [True, False], ids=["in the stream", "at its start"])
async def test_a_watch_that_is_too_old_begins_again_with_a_list(
    api: FakeApiServer, tell: bool
) -> None:
    api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.1"))
    async with watching(api, watch=1) as found:
        await found.next()
        await until(lambda: api.watches == 1)
        if tell:
            api.forget(tell=True)
        else:
            api.refuse_with = 410
            api.cut()
        await found.failure(Trouble.EXPIRED)
        api.refuse_with = 0
        api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.7"))
        await found.until("prefill 10.0.0.7:7100")


async def test_a_watch_that_ends_by_itself_is_no_error(api: FakeApiServer) -> None:
    async with watching(api, watch=1) as found:
        assert await found.next() == []
        await until(lambda: len(api.requests) >= 4)  # list, watch, list, watch
        assert not any(found.keeper.errors.values())


async def test_a_connection_that_falls_silent_is_given_up(api: FakeApiServer) -> None:
    api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.1"))
    async with watching(api, silence=0.3) as found:
        api.silent = True
        await found.next()
        await found.failure(Trouble.UNREACHABLE)
        api.silent = False
        api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.8"))
        await found.until("prefill 10.0.0.8:7100")


@pytest.mark.promise("S5-124")
async def test_while_the_api_server_is_away_the_list_stays_and_grows_old(
    api: FakeApiServer,
) -> None:
    api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.1"))
    async with watching(api) as found:
        await found.next()
        await until(lambda: api.watches == 1)
        api.down()
        await found.failure(Trouble.UNREACHABLE, more_than=2)
        waiting = asyncio.gather(found.next())
        age = found.keeper.age_seconds()
        await until(lambda: found.keeper.age_seconds() > age + 0.1)
        assert not waiting.done()
        api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.2"))
        api.up()
        assert await soon(waiting) == [["prefill 10.0.0.2:7100"]]
        assert found.keeper.age_seconds() < age + 0.1


async def test_a_router_without_the_rights_says_which_and_waits_for_them(
    api: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    api.refuse_with = 403
    api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.1"))
    with caplog.at_level(logging.ERROR):
        async with watching(api) as found:
            await_list = asyncio.gather(found.next())
            await found.failure(Trouble.FORBIDDEN, more_than=1)
            assert not await_list.done()
            api.refuse_with = 0
            assert await soon(await_list) == [["prefill 10.0.0.1:7100"]]
    first = caplog.records[0]
    assert "verbs list and watch on endpointslices" in first.getMessage()
    assert "in namespace serving" in first.getMessage()
    assert 'User "router" cannot list' in first.__dict__["reason"]


@pytest.mark.parametrize("body", [b"<html>", b'{"items": 3, "metadata": {}}', b"{}"])
async def test_an_answer_that_is_none_changes_nothing(api: FakeApiServer, body: bytes) -> None:
    api.body = body
    api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.1"))
    async with watching(api) as found:
        waiting = asyncio.gather(found.next())
        await found.failure(Trouble.ANSWER, more_than=1)
        api.body = b""
        assert await soon(waiting) == [["prefill 10.0.0.1:7100"]]
        await until(lambda: api.watches == 1)
        seen = found.keeper.errors[Trouble.ANSWER]
        api.send({"type": "MODIFIED", "object": {"metadata": []}})
        await found.failure(Trouble.ANSWER, more_than=seen)


async def test_a_bookmark_says_that_discovery_is_fresh(api: FakeApiServer) -> None:
    api.put(endpoint_slice("p-1", "t-prefill", "10.0.0.1"))
    async with watching(api) as found:
        await found.next()
        await until(lambda: api.watches == 1)
        await until(lambda: found.keeper.age_seconds() > 0.2)
        api.bookmark()
        await until(lambda: found.keeper.age_seconds() < 0.2)
        assert not any(found.keeper.errors.values())


# --- its manners -----------------------------------------------------------------------------


async def test_it_asks_for_nothing_but_the_slices_of_its_services(api: FakeApiServer) -> None:
    async with watching(api, watch=1) as found:
        await found.next()
        await until(lambda: len(api.requests) >= 4)
    for method, path, query in api.requests:
        assert (method, path) == ("GET", PATH)
        assert query["labelSelector"] == "kubernetes.io/service-name in (t-decode,t-prefill)"


async def test_it_asks_for_the_slices_of_routers_in_the_same_request(api: FakeApiServer) -> None:
    async with watching(api, routers="t-router") as found:
        await found.next()
        await until(lambda: api.watches == 1)
    assert {query["labelSelector"] for *_, query in api.requests} == {
        "kubernetes.io/service-name in (t-decode,t-prefill,t-router)"
    }


@pytest.mark.parametrize("state", ["watching", "silent", "refused", "away"])
async def test_it_stops_at_once_and_leaves_no_thread(api: FakeApiServer, state: str) -> None:
    api.silent = state == "silent"
    async with watching(api, first_pause=10 * SECONDS, last_pause=20 * SECONDS) as found:
        if state == "refused":
            api.refuse_with = 403
        if state == "away":
            api.down()
        first = asyncio.gather(found.next())
        if state in ("watching", "silent"):
            await soon(first)
            await until(lambda: api.watches == 1)
        else:
            await until(lambda: any(found.keeper.errors.values()))
            first.cancel()
            await asyncio.wait({first})
    await until(lambda: all(each.name != "discovery" for each in threading.enumerate()))


# --- from the settings -----------------------------------------------------------------------


SETTINGS = RouterConfig(discovery="kubernetes", prefill_service="p", decode_service="d")


def test_outside_of_a_cluster_the_start_fails_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none")
    )
    with pytest.raises(StartError, match=r"service account's token.*KUBECONFIG"):
        make_discovery(SETTINGS)


@pytest.fixture
def kubeconfig(api: FakeApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        f"""
apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{api.port}"}}}}]
users: [{{name: u, user: {{token: secret}}}}]
contexts: [{{name: here, context: {{cluster: c, user: u}}}}]
""",
        encoding="utf-8",
    )
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))


@pytest.mark.usefixtures("kubeconfig")
def test_outside_of_a_pod_the_namespace_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_discovery, "NAMESPACE_FILE", kubernetes_discovery.Path("/none"))
    with pytest.raises(StartError, match="namespace"):
        make_discovery(SETTINGS)


@pytest.mark.usefixtures("kubeconfig")
async def test_in_a_pod_the_namespace_is_the_service_account_s(
    api: FakeApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "namespace").write_text("serving\n", encoding="utf-8")
    monkeypatch.setattr(kubernetes_discovery, "NAMESPACE_FILE", tmp_path / "namespace")
    api.put(endpoint_slice("p-1", "p", "10.0.0.1"))
    discovery = make_discovery(SETTINGS)
    assert isinstance(discovery, KubernetesDiscovery)
    async with aclosing(discovery.listings()) as listings:
        assert await soon(anext(listings)) == Listing((Listed("10.0.0.1:7100", Phase.PREFILL),))
    assert api.requests[0][1] == PATH


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize(("number", "names"), [(2, "(d,p,r)"), (0, "(d,p)")])
async def test_routers_are_watched_where_they_divide_workers(
    api: FakeApiServer, number: int, names: str
) -> None:
    settings = replace(
        SETTINGS,
        namespace="serving",
        router_service="r",
        advertise_host="10.0.0.1",
        decode_routers=number,
    )
    async with aclosing(make_discovery(settings).listings()) as listings:
        await soon(anext(listings))
    assert api.requests[0][2]["labelSelector"] == f"kubernetes.io/service-name in {names}"
