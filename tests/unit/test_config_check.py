"""`tandem config check` and `--check-config` refuse what a component would refuse at its start."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import tandem_aggregated_worker.__main__
import tandem_decode_worker.__main__
import tandem_frontend.__main__
import tandem_prefill_worker.__main__
import tandem_router.__main__
from tandem.cli import config_command, main
from tandem.process import would_start

MAIN: dict[str, Callable[[], int]] = {
    "frontend": tandem_frontend.__main__.main,
    "router": tandem_router.__main__.main,
    "prefill_worker": tandem_prefill_worker.__main__.main,
    "decode_worker": tandem_decode_worker.__main__.main,
    "aggregated_worker": tandem_aggregated_worker.__main__.main,
}
HOOKS = """
import os, time
from tandem.hooks.contract import emit

class Upper:
    def __init__(self, *, to: str = "") -> None:
        self.to = to

    def __call__(self, chunk):
        return emit(chunk.text_diff.upper())

class Raises(Upper):
    def __init__(self):
        raise ValueError("no")

NOT_CALLABLE = 3
"""


@pytest.fixture
def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str, str], tuple[int, str]]:
    """A component's status for a settings file, and what it says."""
    (tmp_path / "checked_hooks.py").write_text(HOOKS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def checked(component: str, content: str) -> tuple[int, str]:
        file = tmp_path / "settings.yaml"
        file.write_text(content)
        monkeypatch.setattr(sys, "argv", ["x", "--check-config", f"--config={file}"])
        status = MAIN[component]()
        said = capfd.readouterr()
        return status, said.out + said.err

    return checked


def of_worker(model_path: Path, more: str) -> str:
    """`more` begins at line 4."""
    return f"engine: sim\nmodel_path: {yaml.safe_dump(str(model_path)).splitlines()[0]}\n\n{more}"


@pytest.mark.promise("S6-522")
@pytest.mark.parametrize("component", list(MAIN))
def test_settings_with_which_a_component_would_start_are_good(
    check: Callable[[str, str], tuple[int, str]], component: str, model_path: Path
) -> None:
    settings = {
        "router": "max_queue: 3\n",
        "frontend": f"model_path: {model_path}\n",
    }.get(component)
    hook = "hooks: {workers: 2, chain: [{path: 'checked_hooks:Upper', config: {to: x}}]}\n"
    status, said = check(component, settings or of_worker(model_path, hook))
    assert (status, would_start(component) in said) == (0, True), said


BAD_WORKERS = [
    ("hook: no_such_module:Hook\n", 4, "there is no module 'no_such_module'"),
    ("hook: checked_hooks:Missing\n", 4, "has no 'Missing'"),
    ("hooks:\n  workers: 1\n  chain:\n  - checked_hooks:Missing\n", 7, "has no 'Missing'"),
    ("hooks:\n  chain:\n  - banned_phrases\n", 6, "at least one phrase"),
    ("hooks:\n  chain:\n  - path: checked_hooks:Raises\n", 6, "no"),
    ("hooks:\n  chain:\n  - {path: 'checked_hooks:Upper', config: {too: x}}\n", 6, "too"),
    ("hook: checked_hooks:NOT_CALLABLE\n", 4, "checked_hooks"),
    ("hooks: {workers: 1, chain: [a:B]}\nhook: a:C\n", 5, "both set"),
    ("logits_processors:\n  ban: checked_hooks:Missing\n", 5, "Missing"),
    ("engine_options:\n  step_ms: 1\n  page_sze: 2\n", 6, "did you mean page_size?"),
    ("lora_adapters:\n  a: /no/such/adapter\n", 5, "/no/such/adapter"),
    ("tls_cert: /no/such.crt\ntls_key: /no/such.key\ntls_ca: /no/such.ca\n", 0, "/no/such"),
]


@pytest.mark.promise("S6-522")
@pytest.mark.parametrize("component", ["prefill_worker", "decode_worker", "aggregated_worker"])
def test_what_a_worker_cannot_start_with_is_refused_with_its_line(
    check: Callable[[str, str], tuple[int, str]], component: str, model_path: Path
) -> None:
    for more, line, says in BAD_WORKERS:
        status, said = check(component, of_worker(model_path, more))
        assert status == 2, (more, said)
        assert says in said, more
        if line:
            assert f"settings.yaml, line {line}: " in said, (more, said)


@pytest.mark.promise("S6-522")
@pytest.mark.parametrize("component", ["decode_worker", "aggregated_worker"])
def test_classifiers_are_built_by_the_check(
    check: Callable[[str, str], tuple[int, str]], component: str, model_path: Path
) -> None:
    entries = "classifiers:\n  entries:\n"
    for more, line, says in (
        ("  - no_such_module:Judge\n", 6, "there is no module 'no_such_module'"),
        ("  - path: webhook\n    config: {urls: x}\n", 6, "urls"),
    ):
        status, said = check(component, of_worker(model_path, entries + more))
        assert (status, says in said) == (2, True), said
        assert f"settings.yaml, line {line}: " in said


@pytest.mark.promise("S6-522")
@pytest.mark.parametrize(
    ("component", "content", "says"),
    [
        ("frontend", "model_path: /no/such/model\n", "line 1: "),
        ("frontend", "model_path: MODEL\napi_keys_file: /no/such\n", "/no/such"),
        ("frontend", "model_path: MODEL\nhttps_cert: /no/c\nhttps_key: /no/k\n", "/no/"),
        ("router", "prefill_policy: leest_loaded\n", "line 1: "),
        ("router", "voucher_key_file: /no/such\n", "/no/such"),
        ("decode_worker", "engine: sim\nmodel_path: /no/such/model\n", "line 2: "),
    ],
)
def test_files_and_names_that_settings_mention_are_looked_up(
    check: Callable[[str, str], tuple[int, str]],
    component: str,
    content: str,
    says: str,
    model_path: Path,
) -> None:
    status, said = check(component, content.replace("MODEL", str(model_path)))
    assert (status, says in said) == (2, True), said


@pytest.mark.promise("S6-522")
@pytest.mark.parametrize(
    ("body", "says"),
    [("os._exit(0)", "without an answer"), ("time.sleep(600)", "took longer than")],
)
def test_code_that_ends_or_never_ends_its_process_does_not_pass_the_check(
    tmp_path: Path,
    model_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    body: str,
    says: str,
) -> None:
    (tmp_path / "odd_hook.py").write_text(f"import os, time\n{body}\n")
    monkeypatch.chdir(tmp_path)
    if "sleep" in body:
        monkeypatch.setattr(config_command, "CHECK_SECONDS", 0.2)
    flags = ["--engine=sim", f"--model-path={model_path}", "--hook=odd_hook:Hook"]
    assert main(["config", "check", "decode_worker", *flags]) == 2
    assert says in capfd.readouterr().err


@pytest.mark.parametrize("given", [[], ["no_such"], ["--config=x"]])
def test_a_check_of_no_component_names_the_components(
    capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    assert main(["config", "check", *given]) == 2
    assert (
        "needs the file of a stack, or a component, one of frontend, router"
        in capsys.readouterr().err
    )
