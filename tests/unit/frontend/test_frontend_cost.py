"""What answers say they cost, where the deployment has prices."""

from __future__ import annotations

from typing import Any

import pytest
from fake_router import Reply
from harness import BOTH_WAYS, MODEL, Start, events, say_hello

from tandem.errors import ConfigError
from tandem.v1 import common_pb2
from tandem_frontend.prices import Prices

PREFILL, DECODE = common_pb2.PHASE_PREFILL, common_pb2.PHASE_DECODE
PRICE = {"prefill_second": 2.0, "decode_slot_second": 0.5, "kv_token_second": 0.001}
COST = 2.0 * 0.25 + 0.5 * 4.0 + 0.001 * (10 + 100)
DETAILS = {"prefill_seconds": 0.25, "decode_slot_seconds": 4.0, "kv_token_seconds": 110.0}


async def reporting(reply: Reply) -> None:
    """Both phases report, and the answer follows."""
    assert reply.submit.want_cost
    reports = (
        {"phase": PREFILL, "worker_seconds": 0.25, "phase_seconds": 9.0, "kv_token_seconds": 10},
        {"phase": DECODE, "worker_seconds": 0.75, "phase_seconds": 4.0, "kv_token_seconds": 100},
        {"phase": DECODE, "worker_seconds": float("nan")},
        {"phase": DECODE, "kv_token_seconds": -1.0},
    )
    for fields in reports:
        reply.report(common_pb2.PhaseReport(**fields))  # type: ignore[arg-type]
    await say_hello(reply)


@pytest.mark.promise("S5-802")
@BOTH_WAYS
@pytest.mark.parametrize("name", ["*", MODEL])
async def test_usage_says_what_an_answer_cost(start: Start, name: str, stream: bool) -> None:
    """A report that cannot be costs nothing, and nobody sees a report by it."""
    frontend = await start(reporting, prices={name: PRICE, "another": {}})
    options = {"stream_options": {"include_usage": True}} if stream else {}
    response = await frontend.chat(stream=stream, **options)
    answer = events(response.text)[-1] if stream else response.json()
    assert answer["usage"]["cost"] == pytest.approx(COST)
    assert answer["usage"]["cost_details"] == DETAILS
    assert "tandem" not in answer


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
    ],
)
async def test_the_other_dialects_say_it_too(start: Start, path: str, body: Any) -> None:
    frontend = await start(reporting, prices={"*": PRICE})
    answer = (await frontend.http.post(path, json={"model": MODEL, **body})).json()
    assert answer["usage"]["cost"] == pytest.approx(COST)


@pytest.mark.parametrize("prices", [{}, {"another": PRICE}])
async def test_without_a_price_usage_says_nothing_of_cost(start: Start, prices: Any) -> None:
    async def script(reply: Reply) -> None:
        assert reply.submit.want_cost == bool(prices)
        await say_hello(reply)

    usage = (await (await start(script, prices=prices)).chat()).json()["usage"]
    assert not {"cost", "cost_details"} & usage.keys()


def test_an_adapter_has_its_own_price_or_its_models() -> None:
    prices = Prices({"m": {"prefill_second": 1}, "m:a": {"prefill_second": 3}})
    reports = [common_pb2.PhaseReport(phase=PREFILL, worker_seconds=2.0)]
    found = [prices.cost("m", full, reports) for full in ("m", "m:a", "m:b")]
    assert [each and each[0] for each in found] == [2.0, 6.0, 2.0]
    assert prices.cost("other", "other", reports) is None


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        ({"*": {"prefil_second": 1}}, "prefil_second"),
        ({"*": {"prefill_second": "1"}}, "Expected `float`"),
        ({"*": {"prefill_second": -1}}, "0 or more"),
        ({"m": {"kv_token_second": float("inf")}}, "'m'"),
        ({"*": 3}, "prices"),
    ],
)
def test_prices_that_cannot_be_end_the_start(prices: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Prices(prices)
