"""Real SGLang workers in pods, on the CPU, by the same chart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cluster_values import component
from kube import Namespace
from openai import OpenAI
from release import MODEL, Release


@pytest.mark.timeout(900)
def test_sglang_workers_in_pods_serve_and_move_kv(
    namespace: Namespace, image: str, tmp_path: Path
) -> None:
    sglang = os.environ.get("TANDEM_TEST_SGLANG_IMAGE", "")
    if not sglang:
        pytest.skip("set TANDEM_TEST_SGLANG_IMAGE to an image with SGLang for CPUs")
    repository, _, tag = sglang.rpartition(":")
    values = {
        "fullnameOverride": "real",
        "model": {"uri": "image:///opt/tandem/model/tandem-tiny"},
        "engine": {
            "type": "sglang",
            "device": "cpu",
            "image": {"repository": repository, "tag": tag},
        },
        "frontend": component(1),
        "router": component(1),
        "prefill": component(1),
        "decode": component(1),
    }
    release = Release("real", namespace, image)
    try:
        release.install(values, tmp_path, minutes=10)
        release.namespace.helm("test", "real", "--timeout", "3m")
        with (
            release.forwarded() as address,
            OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0) as client,
        ):
            answer = client.completions.create(
                model=MODEL, prompt="The assert statement", max_tokens=32, temperature=0
            )
        assert len(answer.choices[0].text) > 40
        assert release.metric("decode", "tandem_kv_transfer_bytes_total") > 0
    finally:
        release.namespace.helm("uninstall", "real", "--wait", "--timeout", "3m")
