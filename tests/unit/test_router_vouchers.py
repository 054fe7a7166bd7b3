"""What may be wrong with a voucher, and with the key that signs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import ConfigError, VoucherError
from tandem.v1 import common_pb2, router_pb2
from tandem_router import ingress, vouchers
from tandem_router.permissions import Permissions
from tandem_router.vouchers import Vouchers

KEY = b"k" * 32
VOUCHER = common_pb2.Voucher(
    room=12,
    kv_peer="prefill:9",
    model="tiny",
    task_digest=bytes(32),
    first_token_ids=[7],
    first_logprobs=[-0.5],
)
TRACE = "0af7651916cd43dd8448eb211c80319c"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def signed(clock: Clock, key: bytes = KEY) -> bytes:
    return Vouchers(key, clock).signed(VOUCHER, lease_seconds=30)


def until(seconds: float) -> common_pb2.Voucher:
    """What is read of VOUCHER while its lease ends then."""
    read = common_pb2.Voucher(expires_unix_ms=int(seconds * 1000))
    read.MergeFrom(VOUCHER)
    return read


def test_a_voucher_is_read_as_it_was_signed_until_its_lease_ends() -> None:
    clock = Clock()
    data = signed(clock)
    clock.now += 29.9
    assert Vouchers(KEY, clock).opened(data) == until(1030)
    clock.now += 0.1
    with pytest.raises(VoucherError, match="over"):
        Vouchers(KEY, clock).opened(data)


@pytest.mark.promise("S6-190")
def test_another_deployment_s_is_refused() -> None:
    clock = Clock()
    with pytest.raises(VoucherError, match="another deployment"):
        Vouchers(KEY, clock).opened(signed(clock, b"o" * 32))


@pytest.mark.promise("S6-190")
def test_every_bit_of_it_counts() -> None:
    clock = Clock()
    data = signed(clock)
    for place in range(8 * len(data)):
        altered = bytearray(data)
        altered[place // 8] ^= 1 << place % 8
        with pytest.raises(VoucherError):
            Vouchers(KEY, clock).opened(bytes(altered))


@pytest.mark.parametrize("data", [b"x", b"", bytes(10_000), b"\xff" * 50])
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(VoucherError):
        Vouchers(KEY, Clock()).opened(data)


def test_what_was_signed_with_the_key_for_another_purpose_is_none() -> None:
    import hashlib
    import hmac

    content = common_pb2.Voucher(room=1, expires_unix_ms=2**60).SerializeToString()
    plain = hmac.new(KEY, content, hashlib.sha256).digest()
    data = common_pb2.SignedVoucher(voucher=content, signature=plain).SerializeToString()
    with pytest.raises(VoucherError):
        Vouchers(KEY, Clock()).opened(data)


def test_a_key_is_read_from_a_file_and_must_be_one(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert vouchers.load("") is None
    with pytest.raises(ConfigError, match="cannot be read"):
        vouchers.load(str(path))
    path.write_bytes(KEY[:-1] + b"\n")
    with pytest.raises(ConfigError, match="31 bytes"):
        vouchers.load(str(path))
    path.write_bytes(KEY + b"\n")
    loaded = vouchers.load(str(path))
    assert loaded is not None
    clock = Clock()
    clock.now = 2**40
    assert loaded.opened(signed(clock)) == until(2**40 + 30)


def read(
    message: router_pb2.Submit, signer: Vouchers | None
) -> tuple[str, common_pb2.Voucher | None]:
    """The code of what is wrong with a request, and the voucher that the core is given."""
    message.MergeFrom(
        router_pb2.Submit(
            first_sequence=1,
            n=1,
            trace_id=TRACE,
            model="tiny",
            timeout_ms=9,
            task=common_pb2.Task().SerializeToString(),
        )
    )
    submit = ingress.read_submit(
        1,
        message,
        permissions=Permissions(),
        vouchers=signer,
        max_timeout_seconds=9.0,
        tracing=False,
    )
    return "" if submit.fault is None else submit.fault.code, submit.voucher


@pytest.mark.promise("S2-082")
def test_without_a_key_both_halves_are_refused_by_name() -> None:
    clock = Clock()
    both = router_pb2.Submit(context_only=True), router_pb2.Submit(voucher=signed(clock))
    for message in both:
        assert read(message, None) == ("unsupported_parameter", None)


def test_the_core_is_given_what_was_signed() -> None:
    clock = Clock()
    signer = Vouchers(KEY, clock)
    assert read(router_pb2.Submit(context_only=True), signer) == ("", None)
    assert read(router_pb2.Submit(voucher=signed(clock)), signer) == ("", until(1030))
    wrong = router_pb2.Submit(voucher=signed(clock) + b"x")
    assert read(wrong, signer)[0] == "voucher_refused"
    both = router_pb2.Submit(context_only=True, voucher=signed(clock))
    assert read(both, signer)[0] == "voucher_refused"
