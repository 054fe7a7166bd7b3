"""The image with vLLM names folders for what is compiled: vLLM itself says that it uses them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCKERFILE = Path(__file__).resolve().parents[3] / "docker" / "tandem-vllm.Dockerfile"
CACHE = "/tmp/cache"
"""Where the chart mounts a volume."""
COMPILERS = """
import json, torch.utils.cpp_extension
import triton, vllm.envs
from torch._inductor.runtime.cache_dir_utils import cache_dir
from vllm.v1.structured_output.utils import get_outlines_cache_path
print("\\n" + json.dumps({
    "vllm": vllm.envs.VLLM_CACHE_ROOT,
    "outlines": get_outlines_cache_path(),
    "triton": triton.knobs.cache.dir,
    "inductor": cache_dir(),
    "torch extensions": torch.utils.cpp_extension._get_build_directory("any", False),
}))
"""
"""Prints where each says that it keeps what it compiles."""


@pytest.mark.vllm
@pytest.mark.promise("S5-863")
def test_what_compiles_for_vllm_keeps_it_where_the_chart_mounts_a_volume(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    named = re.findall(rf"^ +(\w+)=({CACHE}\S*)", DOCKERFILE.read_text(), flags=re.MULTILINE)
    assert len(named) > 5
    environ = {name: value.replace(CACHE, cache) for name, value in named}
    environ |= {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", COMPILERS], env=environ, capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, path in told.items() if not path.startswith(cache)} == set()
