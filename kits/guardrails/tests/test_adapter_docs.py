"""What the pages about classifiers and adapters show, works as it stands there."""

from __future__ import annotations

import base64
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from guardrail_server import Reply, serving
from product_packages import offered

from tandem.hooks.classifiers.classifier_set import ClassifierSet
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.settings import ClassifierSettings, parse
from tandem_guardrails.adapters.webhook import WebhookClassifier

KIT = Path(__file__).resolve().parents[1]
ADAPTERS = KIT / "docs" / "adapters.md"
CLASSIFIERS = KIT.parents[1] / "docs" / "hooks" / "classifiers.md"
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def settings_of(page: Path) -> Iterator[ClassifierSettings]:
    for block in blocks(page, "yaml"):
        content = yaml.safe_load(block)
        if block.startswith("# the frontend's settings"):
            continue
        assert content.keys() == {"classifiers"}
        yield parse(content["classifiers"])


def run(source: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(source, "docs", "exec"), namespace)
    return namespace


@pytest.fixture
def _toxicity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's own example, importable under the name that its settings give."""
    module = types.ModuleType("my_pkg.toxicity")
    vars(module).update(run(blocks(CLASSIFIERS, "python")[0]))
    monkeypatch.setitem(sys.modules, "my_pkg", types.ModuleType("my_pkg"))
    monkeypatch.setitem(sys.modules, "my_pkg.toxicity", module)


@pytest.mark.usefixtures("_toxicity")
async def test_the_classifiers_page_shows_settings_and_a_class_that_load() -> None:
    shortest, first, plugins, again = settings_of(CLASSIFIERS)
    assert shortest.hold_back == "all"
    classifiers = ClassifierSet.build(first, model="m")
    assert [runner.name for runner in classifiers.runners] == ["toxicity", "acme-guard"]
    toxicity = classifiers.runners[0].hook
    ctx = ScoringContext(request_id="r", prompt="", generated_text="")
    assert await toxicity.score(ctx) == {"block": False, "score": 0.0}
    await classifiers.shutdown()
    assert plugins.plugins == ("acme",)
    assert again.regenerate.times == 1


async def test_the_adapters_page_shows_settings_that_load_every_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    (tmp_path / "guardrail").write_text("sk-2")
    (tmp_path / "webhook").write_text(SECRET)
    seen = []
    for settings in settings_of(ADAPTERS):
        for entry in settings.entries:
            here = str(entry.config).replace("/etc/tandem/keys", str(tmp_path))
            config = yaml.safe_load(here)
            config.get("http", {}).pop("ca_file", None)
            made = ClassifierSet.build(
                parse({"entries": [{"path": entry.path, "config": config}]}), model="m"
            )
            seen.append(entry.path)
            await made.shutdown()
    assert set(seen) == set(offered("tandem.classifiers"))


async def test_the_receiver_on_the_adapters_page_tells_a_genuine_call_from_a_forged_one(
    tmp_path: Path,
) -> None:
    (receiver,) = blocks(ADAPTERS, "python")
    is_genuine = run(receiver)["is_genuine"]
    (tmp_path / "secret").write_text(SECRET)
    async with serving() as server:
        server.reply = Reply(body={"block": False})
        hook = WebhookClassifier(url=server.url, secret_file=str(tmp_path / "secret"))
        await hook.score(ScoringContext(request_id="r", prompt="", generated_text="text"))
        await hook.shutdown()
    (request,) = server.requests
    forged = request.body.replace(b"text", b"TEXT")
    seen: set[str] = set()
    assert not is_genuine(request.headers, forged, SECRET, seen)
    assert is_genuine(request.headers, request.body, SECRET, seen)
    assert not is_genuine(request.headers, request.body, SECRET, seen), "a replay"
    old = {**request.headers, "webhook-timestamp": "1"}
    assert not is_genuine(old, request.body, SECRET, set())
