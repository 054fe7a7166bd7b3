"""What a call's headers say, as gRPC over HTTP/2 writes it."""

from __future__ import annotations

import grpc
import pytest

from tandem_loop_grpc import headers


@pytest.mark.promise("S5-445")
@pytest.mark.parametrize(
    ("said", "seconds"),
    [("5H", 18_000.0), ("2M", 120.0), ("3S", 3.0), ("250m", 0.25), ("70u", 7e-5), ("9n", 9e-9)],
)
def test_a_timeout_is_read_in_its_unit(said: str, seconds: float) -> None:
    assert headers.timeout([(b"grpc-timeout", said.encode())]) == pytest.approx(seconds)


@pytest.mark.promise("S5-445")
@pytest.mark.parametrize("seconds", [4e-4, 0.25, 99.999999, 100.5, 3_600.0, 1e6])
def test_a_timeout_is_written_as_it_is_read(seconds: float) -> None:
    written = headers.of_request("/a/B", "host:1", secure=False, timeout=seconds, metadata=())
    assert headers.timeout(written) == pytest.approx(seconds, rel=1e-5)


@pytest.mark.promise("S5-445")
def test_a_message_travels_in_signs_that_headers_may_have() -> None:
    message = "100 % no: \u00e9\n\x00 \u20ac"
    written = headers.of_status((grpc.StatusCode.ABORTED, message, ()))
    (value,) = (value for name, value in written if name == b"grpc-message")
    assert all(0x20 <= sign < 0x7F for sign in value)
    assert headers.status(written)[:2] == (grpc.StatusCode.ABORTED, message)
