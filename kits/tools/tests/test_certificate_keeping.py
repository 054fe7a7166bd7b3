"""`tandem certificates --keep`: what is lost is there again, and what it says of itself."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.wire.tls import ROLES
from tandem_tools import certificate_keeping
from tandem_tools.certificate_keeping import CertificateKeeper, KeptCollector
from tandem_tools.certificate_stores import StoreError

SECONDS = 30.0


class Scripted:
    """A store's answers, one for each look; the last one again and again."""

    def __init__(self, *answers: tuple[str, ...] | str) -> None:
        self._answers = list(answers)
        self.looks = 0
        self.on_look: Callable[[int], object] = lambda looks: None

    def __call__(self) -> tuple[str, ...]:
        answer = self._answers[min(self.looks, len(self._answers) - 1)]
        self.looks += 1
        self.on_look(self.looks)
        if isinstance(answer, str):
            raise StoreError(answer)
        return answer


@pytest.mark.promise("S6-500")
async def test_it_looks_again_whatever_came_of_the_look_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certificate_keeping, "LOOK_SECONDS", 0.0)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    renew = Scripted(("new CA: there was none",), "no answer", "no answer", ())
    renew.on_look = lambda looks: loop.call_soon_threadsafe(stop.set) if looks == 6 else None
    async with asyncio.timeout(SECONDS):
        await CertificateKeeper(renew).run(stop)
    assert renew.looks >= 6


@pytest.mark.promise("S6-501")
async def test_it_says_whether_all_is_kept_and_each_failure_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    keeper = CertificateKeeper(
        Scripted("refused", "refused", ("router: new certificate: there was none",))
    )
    (family,) = KeptCollector(lambda: keeper.kept).collect()
    assert [sample.value for sample in family.samples] == [0.0]
    for _ in range(2):
        await keeper.look()
        assert not keeper.kept
    assert [each.levelname for each in caplog.records] == ["ERROR"]
    await keeper.look()
    assert keeper.kept
    (family,) = KeptCollector(lambda: keeper.kept).collect()
    assert [(each.name, each.value) for each in family.samples] == [("tandem_certificates_kept", 1)]
    assert [each.message for each in caplog.records[1:]] == [
        "router: new certificate: there was none",
        "every certificate is good",
    ]


@pytest.mark.promise("S6-500")
def test_the_command_goes_on_until_it_is_told_to_stop(tmp_path: Path) -> None:
    arguments = ["certificates", "--to", str(tmp_path / "made"), "--keep"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tandem.cli", *arguments, "--metrics-listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "every certificate is good" in line:
                break
        names = {path.name for path in (tmp_path / "made").iterdir()}
        assert {f"{role}.crt" for role in ROLES} <= names
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
