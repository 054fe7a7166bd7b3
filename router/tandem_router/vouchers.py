"""Vouchers as programs hold them: signed, so that only the routers of one deployment can make one,
and nobody can change it.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from pathlib import Path

from google.protobuf.message import DecodeError

from tandem.errors import ConfigError, UnsupportedError, VoucherError
from tandem.v1 import common_pb2, router_pb2

KEY_BYTES = 32
"""A key has at least so many."""
MOST_BYTES = 4096
"""A signed voucher has no more."""
_PURPOSE = b"tandem voucher 1\n"
"""Signed with it, so that the key may serve nothing else by mistake."""


class Vouchers:
    """Signs and checks with one key."""

    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        """`key`: whoever has it can make vouchers. `clock` says seconds since 1970."""
        self._key = key
        self._clock = clock

    def signed(self, voucher: common_pb2.Voucher, *, lease_seconds: float) -> bytes:
        """A serialised SignedVoucher, which expires with the lease."""
        until = common_pb2.Voucher(expires_unix_ms=int((self._clock() + lease_seconds) * 1000))
        until.MergeFrom(voucher)
        content = until.SerializeToString()
        signed = common_pb2.SignedVoucher(voucher=content, signature=self._signature(content))
        return signed.SerializeToString()

    def opened(self, data: bytes) -> common_pb2.Voucher:
        """What was signed. Raises VoucherError where this key did not sign it, or it is over."""
        if len(data) > MOST_BYTES:
            raise VoucherError("it is none: it is too long")
        try:
            signed = common_pb2.SignedVoucher.FromString(data)
        except DecodeError as error:
            raise VoucherError("it is none") from error
        if not hmac.compare_digest(signed.signature, self._signature(signed.voucher)):
            raise VoucherError("it was altered, or another deployment made it")
        try:
            content = common_pb2.Voucher.FromString(signed.voucher)
        except DecodeError as error:
            raise VoucherError("it is none") from error
        if not content.room:
            raise VoucherError("it is of no room")
        if content.expires_unix_ms <= self._clock() * 1000:
            raise VoucherError("its time is over")
        return content

    def _signature(self, content: bytes) -> bytes:
        return hmac.new(self._key, _PURPOSE + content, hashlib.sha256).digest()


def load(path: str) -> Vouchers | None:
    """With the key in a file; None for no file. Raises ConfigError where there is no key in it."""
    if not path:
        return None
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"voucher_key_file: {path} cannot be read: {error}") from error
    if len(key) < KEY_BYTES:
        raise ConfigError(
            f"voucher_key_file: {path} holds {len(key)} bytes; a key has {KEY_BYTES} or more, as"
            " `openssl rand -hex 32` makes it"
        )
    return Vouchers(key)


def of_submit(vouchers: Vouchers | None, message: router_pb2.Submit) -> common_pb2.Voucher | None:
    """The voucher that a request brings, if it does. Raises UnsupportedError where nothing is
    signed here, and VoucherError for one that cannot be used.
    """
    if not (message.context_only or message.voucher):
        return None
    if vouchers is None:
        raise UnsupportedError(
            "context-only and generation-only requests are not offered: this router has no"
            " voucher_key_file",
            param="type",
        )
    if message.context_only and message.voucher:
        raise VoucherError("a context-only request has none")
    return vouchers.opened(message.voucher) if message.voucher else None
