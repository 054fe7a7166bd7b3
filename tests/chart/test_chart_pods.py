"""What every pod keeps to: Pod Security, probes, grace, and names that lead somewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import chart_renders
import pods
import pytest
from chart_renders import SETS
from one_case import one_case
from pods import Pod

from tandem import cli
from tandem.byte_budget import DEFAULT_BYTES
from tandem.logits.forms.workshop import WorkshopLimits
from tandem.worker import divided, drain, endpoint
from tandem_sglang import options as sglang_options
from tandem_vllm import options as vllm_options

MIB, GIB = 2**20, 2**30
COMPONENTS = ("frontend", "router", "prefill", "decode")
WORKERS = ("prefill", "decode")
RESTRICTED = [
    name
    for name in SETS
    if chart_renders.values(name).get("global", {}).get("podSecurity", "restricted") == "restricted"
]
SAFE_VOLUMES = {"configMap", "downwardAPI", "emptyDir", "image", "persistentVolumeClaim", "secret"}
EXTERNAL = {
    # Set -> what the operator says is there already.
    "bucket": {"Secret/bucket-reader", "ServiceAccount/bucket-reader"},
    "compile-cache": {"PersistentVolumeClaim/models", "PersistentVolumeClaim/compiled"},
    "existing-secrets": {
        "Secret/pairs",
        "Secret/edge",
        "Secret/keys",
        "Secret/tenants",
        "Secret/vouchers",
    },
    "gpu-rdma": {"PersistentVolumeClaim/models"},
    "hf-model": {"Secret/hub-token", "ConfigMap/own-ca"},
    "hooks": {"ConfigMap/more-hooks", "PersistentVolumeClaim/hook-data"},
    "ingress-gateway": {"Secret/tandem-keys"},
    "lora": {"Secret/hub-token", "PersistentVolumeClaim/adapters"},
    "multi-node": {"PersistentVolumeClaim/models"},
    "token-processes": {"PersistentVolumeClaim/models"},
    "several-models": {
        "Secret/hub-token",
        "ConfigMap/model-names",
        "PersistentVolumeClaim/own-models",
    },
    "tls": {
        "Secret/tandem-https",
        *(f"Secret/tandem-{component}-tls" for component in COMPONENTS),
    },
    "deepseek-v3": {"PersistentVolumeClaim/models"},
    "llama-3.3-70b": {"Secret/hub-token"},
    "qwen3-235b-a22b": {"PersistentVolumeClaim/models"},
    "vllm": {"PersistentVolumeClaim/models"},
}


def all_pods(
    names: Iterable[str] = SETS, components: tuple[str, ...] = ()
) -> Callable[[], list[Any]]:
    return lambda: [
        pytest.param(pod, id=f"{name}-{pod.owner}")
        for name in names
        for pod in pods.of(chart_renders.of_set(name))
        if not components or pod.component in components
    ]


@pytest.mark.promise("S5-127", "S6-162")
@one_case("pod", all_pods(RESTRICTED))
def test_a_restricted_namespace_takes_the_pod(pod: Pod) -> None:
    security = pod.spec["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security.get("runAsUser", 10001) == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys()
    for container in pod.containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert not any("hostPort" in port for port in container.get("ports", ()))
    for volume in pod.spec["volumes"]:
        assert volume.keys() - {"name"} <= SAFE_VOLUMES


@one_case("pod", all_pods())
def test_the_root_file_system_is_read_only_and_tmp_is_not(pod: Pod) -> None:
    for container in pod.spec["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert "/tmp" in (mount["mountPath"] for mount in container["volumeMounts"])


@pytest.mark.promise("S5-314")
@one_case("pod", all_pods(["openshift"]))
def test_openshift_chooses_users_and_groups_itself(pod: Pod) -> None:
    """Its own are those of the namespace: it refuses pods that name others."""
    chosen = {"runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy"}
    assert not chosen & pod.spec["securityContext"].keys()
    for container in pod.containers:
        assert not chosen & container["securityContext"].keys()


@pytest.mark.promise("S5-314")
@one_case("pod", all_pods(["openshift"]))
def test_a_quota_on_limits_takes_every_pod(pod: Pod) -> None:
    for container in pod.containers:
        for bound in ("requests", "limits"):
            given = container["resources"][bound]
            assert {"cpu", "memory", "ephemeral-storage"} <= given.keys()


@pytest.mark.promise("S5-314")
@one_case("pod", all_pods(["openshift"]))
def test_every_pod_runs_where_global_says_unless_it_says_so_itself(pod: Pod) -> None:
    is_worker = pod.component in ("prefill", "decode")
    assert pod.spec["nodeSelector"] == {"pool": "gpu" if is_worker else "serving"}
    assert pod.spec["tolerations"] == [{"key": "serving", "operator": "Exists"}]
    own = {"router": "serving-high"}
    assert pod.spec["priorityClassName"] == own.get(pod.component, "serving")


@pytest.mark.promise("S5-314")
def test_pods_of_no_component_take_what_others_take() -> None:
    found = pods.of_set("openshift")
    assert found["model"].labels["team"] == found["tls"].labels["team"] == "serving"
    assert found["test"].annotations["team"] == "serving"
    for component in ("test", "tls"):
        assert found[component].spec["securityContext"]["supplementalGroups"] == [7]
    jobs = [each for each in chart_renders.of_set("openshift") if each["kind"] == "Job"]
    stay = {each["metadata"]["name"]: each["spec"]["ttlSecondsAfterFinished"] for each in jobs}
    assert list(stay.values()) == [600]
    for each in chart_renders.of_set("default"):
        assert "ttlSecondsAfterFinished" not in each.get("spec", {})


@pytest.mark.promise("S5-314")
def test_what_is_laid_over_the_containers_of_such_pods_is_in_them() -> None:
    own = {"securityContext": {"seLinuxOptions": {"type": "mine"}}}
    model = {"uri": "hf://a/b", "cache": {"type": "pvc"}, "preload": {"enabled": True, **own}}
    values = {"tests": own, "tls": {"controller": own}, "model": model}
    for pod in pods.of(chart_renders.manifests(values)):
        changed = [each for each in pod.containers if "seLinuxOptions" in each["securityContext"]]
        once = pod.component in ("test", "tls", "model")
        assert [each["name"] for each in changed] == [
            each["name"] for each in pod.containers if once or each["name"] == "fetch-model"
        ]


@pytest.mark.promise("S5-314")
@one_case("pod", all_pods(["hf-model"]))
def test_whatever_downloads_knows_the_proxy_and_the_authority(pod: Pod) -> None:
    downloads = [each for each in pod.containers if each["name"] == "fetch-model"]
    assert bool(downloads) is (pod.component in ("frontend", "prefill", "decode", "model"))
    for container in downloads:
        names = {each["name"] for each in container["env"]}
        assert {"HTTPS_PROXY", "SSL_CERT_FILE"} <= names
        assert "/etc/own-ca" in [mount["mountPath"] for mount in container["volumeMounts"]]


@pytest.mark.promise("S6-162")
@one_case("pod", all_pods())
def test_only_who_asks_the_api_holds_a_token(pod: Pod) -> None:
    """The router that watches it, and the controller that keeps certificates."""
    asks_dns = pod.owner.startswith("Deployment/an-installation")  # the set "restricted"
    asks = pod.component == "tls" or (pod.component == "router" and not asks_dns)
    assert pod.spec["automountServiceAccountToken"] is asks


@one_case("pod", all_pods())
def test_every_image_is_a_version(pod: Pod) -> None:
    for container in pod.containers:
        tag = container["image"].rpartition("/")[2]
        assert "@sha256:" in tag or (":" in tag and not tag.endswith(":latest"))
        assert container["imagePullPolicy"] == "IfNotPresent"


@one_case("pod", all_pods())
def test_every_container_says_what_it_needs(pod: Pod) -> None:
    for container in pod.containers:
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()


@pytest.mark.promise("S5-507")
@one_case("pod", all_pods())
def test_no_limit_range_puts_a_memory_limit_below_a_request_of_the_chart_s(pod: Pod) -> None:
    """It fills in the limits that a pod leaves out: engines alone leave them to who knows the
    model.
    """
    for container in pod.containers:
        if container["name"] in ("prefill", "decode", "worker"):
            continue
        resources = container["resources"]
        assert _bytes(resources["requests"]["memory"]) <= _bytes(resources["limits"]["memory"])


@pytest.mark.promise("S5-313")
@one_case("pod", all_pods())
def test_the_last_words_of_a_container_are_in_its_status(pod: Pod) -> None:
    for container in pod.containers:
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.promise("S5-313")
def test_the_pod_of_a_test_stays_for_its_log() -> None:
    """`helm test --logs` reads it after Helm has deleted what it should."""
    (test,) = (each for each in chart_renders.of_set("default") if each["kind"] == "Pod")
    policy = test["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    assert policy == "before-hook-creation"


@one_case("pod", all_pods(components=(*COMPONENTS, "worker", "tls")))
def test_probes_ask_the_metrics_port_what_each_means(pod: Pod) -> None:
    ports = {port["name"] for port in pod.main["ports"]}
    paths = {"startupProbe": "/started", "livenessProbe": "/live", "readinessProbe": "/ready"}
    for probe, path in paths.items():
        asked = pod.main[probe]["httpGet"]
        assert asked == {"path": path, "port": "metrics"}
        assert asked["port"] in ports


@one_case("pod", all_pods())
def test_no_container_is_restarted_while_it_starts(pod: Pod) -> None:
    """A machine with much to do takes longer to start Python than a liveness probe waits."""
    for container in pod.containers:
        assert ("livenessProbe" in container) == ("startupProbe" in container)


@one_case("component", COMPONENTS)
def test_a_start_may_take_as_long_as_its_value_says(component: str) -> None:
    pod = pods.of_values({component: {"startupSeconds": 601}})[component]
    probe = pod.main["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] >= 601


@pytest.mark.promise("S5-473")
@pytest.mark.parametrize("engine", [sglang_options, vllm_options])
@pytest.mark.parametrize(
    ("chosen", "options"),
    [
        ({}, {}),
        ({"startupSeconds": 700}, {"load_seconds": 700}),
        ({"engineOptions": {"load_seconds": 400, "warm_up_seconds": 100}},) * 2,
    ],
)
def test_a_worker_with_a_model_gives_up_its_start_before_it_is_killed_for_that(
    chosen: dict[str, Any], options: dict[str, Any], engine: Any
) -> None:
    """What is killed says nothing of what it waited for."""
    options = options.get("engineOptions", options)
    bounds = dataclasses.replace(engine.Options(), **options)
    chart = {} if engine is sglang_options else {"engine": {"type": "vllm"}}
    values = {"model": {"uri": "pvc://m"}, **chart, **dict.fromkeys(WORKERS, chosen)}
    for worker in WORKERS:
        pod = pods.of_values(values)[worker]
        given = pod.settings["engine_options"]
        assert given["load_seconds"] == bounds.load_seconds
        probe, seconds = pod.main["startupProbe"], bounds.load_seconds + bounds.warm_up_seconds
        assert probe["failureThreshold"] * probe["periodSeconds"] >= seconds + 60
        made = pods.made(values, *pod.owner.split("/"))
        assert made["spec"]["progressDeadlineSeconds"] >= seconds + 600


@one_case("component", COMPONENTS)
def test_the_grace_period_covers_what_comes_before_the_end(component: str) -> None:
    drain = {"preStopSeconds": 7, "timeoutSeconds": 40, "teardownSeconds": 11}
    pod = pods.of_values({component: {"drain": drain}})[component]
    assert pod.main["lifecycle"]["preStop"] == {"sleep": {"seconds": 7}}
    assert pod.spec["terminationGracePeriodSeconds"] == 58


def test_the_teardown_of_a_worker_is_as_long_as_it_may_take() -> None:
    teardown = chart_renders.chart().values["decode"]["drain"]["teardownSeconds"]
    engine_stop_seconds = 5 + 10  # of followers, and of itself
    own = endpoint.FLUSH_SECONDS + engine_stop_seconds
    assert teardown >= drain.SETTLE_SECONDS + own
    assert teardown >= drain.SETTLE_SECONDS + divided.FLUSH_SECONDS + own


@one_case("name", SETS)
def test_everything_that_is_referred_to_is_there(name: str) -> None:
    made = {f"{each['kind']}/{each['metadata']['name']}" for each in chart_renders.of_set(name)}
    made |= {f"Secret/{each}" for each in _kept_secrets(pods.of_set(name).get("tls"))}
    for pod in pods.of(chart_renders.of_set(name)):
        missing = set(_references(pod)) - made - EXTERNAL.get(name, set())
        assert missing - {"ServiceAccount/default"} == set(), pod.owner


def _kept_secrets(controller: Pod | None) -> Iterator[str]:
    """What is made while the release runs."""
    if controller is not None:
        given = cli.parsed(["certificates", *controller.main["args"]])
        yield from (*given.secrets, given.voucher_secret)


def test_what_is_not_there_would_be_noticed() -> None:
    references = set(_references(pods.of_set("hooks")["prefill"]))
    assert EXTERNAL["hooks"] < references


@one_case("pod", all_pods())
def test_every_mount_has_its_volume_and_every_volume_a_mount(pod: Pod) -> None:
    volumes = {volume["name"] for volume in pod.spec["volumes"]}
    mounts = {mount["name"] for each in pod.containers for mount in each["volumeMounts"]}
    assert volumes == mounts


@pytest.mark.promise("S5-290")
@one_case("name", SETS)
@one_case("component", COMPONENTS)
def test_a_pod_carries_its_settings_and_code_itself(name: str, component: str) -> None:
    """So a pod of an older revision finds its own, and a change makes new pods."""
    pod = pods.of_set(name)[component]
    assert list(pod.carried("settings")) == ["tandem.yaml"]
    files = chart_renders.values(name).get("code", {}).get("files", {})
    if files and component in ("prefill", "decode"):
        assert pod.carried("code-files") == files
    made = {
        f"ConfigMap/{each['metadata']['name']}"
        for each in chart_renders.of_set(name)
        if each["kind"] == "ConfigMap" and not _is_extra(each)
    }
    assert not made & set(_references(pod))


@one_case("pod", all_pods())
def test_every_text_that_a_volume_shows_is_carried(pod: Pod) -> None:
    """The kubelet shows an annotation that is not there as an empty file."""
    for volume in pod.spec["volumes"]:
        if "downwardAPI" in volume:
            assert all(pod.carried(volume["name"]).values())


LAID_OVER: dict[str, Any] = {
    "extraEnv": [{"name": "OWN", "value": "1"}],
    "extraEnvFrom": [{"secretRef": {"name": "own"}}],
    "extraInitContainers": [{"name": "before", "image": "a:1"}],
    "extraContainers": [{"name": "beside", "image": "a:1"}],
    "extraVolumes": [{"name": "own", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "own", "mountPath": "/own"}],
    "nodeSelector": {"disk": "fast"},
    "dnsPolicy": "Default",
    "priorityClassName": "high",
    "securityContext": {"seLinuxOptions": {"type": "own"}},
}


def test_the_pods_of_all_workers_are_built_alike() -> None:
    """Three files spell them out: what one of them takes, the others take."""
    workers = ("prefill", "decode", "worker")
    values: dict[str, Any] = {each: dict(LAID_OVER) for each in workers}
    values["worker"]["enabled"] = True
    values["code"] = {"files": {"a.py": "A = 1\n"}, "image": "code:1"}
    values["model"] = {"uri": "hf://a/b"}
    found = pods.of_values(values)
    prefill, *others = (_alike(found[each]) for each in workers)
    assert others == [prefill, prefill]


def _alike(pod: Pod) -> Any:
    """A worker's pod without what is of its phase alone."""
    spec = {**pod.spec, "containers": [dict(each) for each in pod.spec["containers"]]}
    for key in ("serviceAccountName", "terminationGracePeriodSeconds", "topologySpreadConstraints"):
        assert spec.pop(key)
    main = spec["containers"][0]
    assert main.pop("name") == pod.component
    program = main.pop("command")[0]
    assert program == f"tandem-{pod.component.replace('worker', 'aggregated')}-worker"
    ports = {each["name"]: each["containerPort"] for each in main.pop("ports")}
    assert ports.pop("bootstrap", 7110) == 7110
    assert ports == {"grpc": ports["metrics"] - 1, "metrics": ports["metrics"]}
    (tls,) = (each for each in spec["volumes"] if each["name"] == "tls")
    assert pod.component in str(tls["secret"].pop("items"))
    return spec, sorted(pod.annotations), main["resources"]


def _bytes(quantity: str) -> int:
    for suffix, unit in (("Mi", MIB), ("Gi", GIB)):
        if quantity.endswith(suffix):
            return int(quantity.removesuffix(suffix)) * unit
    return int(quantity)


def _is_extra(each: chart_renders.Manifest) -> bool:
    return "app.kubernetes.io/component" not in each["metadata"].get("labels", {})


def test_an_annotation_of_ones_own_replaces_the_chart_s() -> None:
    """Twice in one pod it would be no YAML for some."""
    values = {
        "monitoring": {"scrapeAnnotations": True},
        "networkPolicy": {"metricsFrom": [{"podSelector": {}}]},
        "commonAnnotations": {"prometheus.io/path": "/common"},
        "router": {"podAnnotations": {"prometheus.io/scrape": "false"}},
    }
    found = pods.of_values(values)
    assert found["router"].annotations["prometheus.io/scrape"] == "false"
    assert found["decode"].annotations["prometheus.io/scrape"] == "true"
    assert found["decode"].annotations["prometheus.io/path"] == "/common"
    text = chart_renders.texts(values)["tandem/templates/router-deployment.yaml"]
    assert text.count("prometheus.io/scrape:") == 1


@pytest.mark.promise("S5-317")
@one_case("component", ["frontend", "prefill", "decode"])
def test_a_model_of_google_s_storage_is_fetched_without_another_store_s_variables(
    component: str,
) -> None:
    pod = pods.of_values({"model": {"uri": "gs://models/qwen3-8b/"}})[component]
    (fetch,) = (each for each in pod.containers if each["name"] == "fetch-model")
    assert fetch["command"][-1] == "gs://models/qwen3-8b/"
    assert (
        fetch["args"][0] == f"--to={pod.settings['model_path']}" == "--to=/models/models--qwen3-8b"
    )
    assert [each["name"] for each in fetch["env"]] == ["HOME"]
    assert pod.settings["served_model_name"] == "qwen3-8b"


@one_case("file", ["_helpers.py", "my-hooks.data.txt", "A"])
def test_a_file_of_code_may_have_any_name_that_a_module_has(file: str) -> None:
    text = 'NAME = "x"\n\tif: <&>\n'
    made = pods.of(chart_renders.manifests({"code": {"files": {file: text}}}))
    found = [pod.carried("code-files") for pod in made if pod.component in ("prefill", "decode")]
    assert found == [{file: text}] * 2


def test_a_download_that_is_to_run_otherwise_is_another_job() -> None:
    """Kubernetes refuses a change of a Job's pod, and an upgrade would fail with it."""
    model = dict(chart_renders.values("hf-model")["model"])
    jobs = [
        next(each for each in chart_renders.manifests({"model": changed}) if each["kind"] == "Job")
        for changed in (model, {**model, "auth": {"existingSecret": "another"}})
    ]
    before, after = (job["metadata"]["name"] for job in jobs)
    assert jobs[0]["spec"] != jobs[1]["spec"]
    assert before != after


def _references(pod: Pod) -> Iterator[str]:
    if account := pod.spec.get("serviceAccountName"):
        yield f"ServiceAccount/{account}"
    for volume in pod.spec["volumes"]:
        if source := volume.get("configMap"):
            yield f"ConfigMap/{source['name']}"
        if source := volume.get("secret"):
            yield f"Secret/{source['secretName']}"
        if source := volume.get("persistentVolumeClaim"):
            yield f"PersistentVolumeClaim/{source['claimName']}"
    for container in pod.containers:
        for variable in container.get("env", ()):
            if source := variable.get("valueFrom", {}).get("secretKeyRef"):
                yield f"Secret/{source['name']}"
        for source in container.get("envFrom", ()):
            yield f"Secret/{source['secretRef']['name']}"


def gibibytes(limits: dict[str, str]) -> int:
    """The memory limit of a container."""
    return int(limits["memory"].removesuffix("Gi"))


@pytest.mark.promise("S6-187")
@one_case("pod", all_pods(components=("frontend", "router")))
def test_what_a_frontend_or_router_holds_is_far_below_its_memory_limit(pod: Pod) -> None:
    assert gibibytes(pod.main["resources"]["limits"]) * GIB >= 8 * DEFAULT_BYTES


@pytest.mark.promise("S6-187")
@one_case("name", SETS)
def test_simulated_workers_have_a_memory_limit_and_engines_only_one_that_is_set(name: str) -> None:
    engine = chart_renders.values(name).get("engine", {}).get("type", "auto")
    uri = chart_renders.values(name).get("model", {}).get("uri", "")
    simulated = engine == "sim" or (engine == "auto" and not uri)
    forms = WorkshopLimits()
    for phase in ("prefill", "decode"):
        limits = pods.of_set(name)[phase].main["resources"].get("limits", {})
        if simulated:
            room = gibibytes(limits) * GIB - DEFAULT_BYTES - forms.cache_bytes
            assert room > forms.processes * (forms.memory_bytes + 60 * MIB) + GIB // 2
        else:
            own = chart_renders.values(name).get(phase, {}).get("resources", {}).get("limits", {})
            assert limits.get("memory") == own.get("memory")


@pytest.mark.parametrize(
    ("nodes", "asked", "requests"),
    [
        (1, {}, {"cpu": 19, "memory": "264Gi"}),
        (2, {}, {"cpu": 11, "memory": "136Gi"}),
        (1, {"requests": {"memory": "1Ti"}}, {"cpu": 19, "memory": "1Ti"}),
        (1, {"limits": {"memory": "5Gi"}}, {"cpu": 19}),
    ],
)
def test_a_worker_requests_what_its_accelerators_take_beside_them(
    nodes: int, asked: dict[str, Any], requests: dict[str, Any]
) -> None:
    values = {
        "model": {"uri": "pvc://models/m"},
        "engine": {"tensorParallel": 16},
        "decode": {"resources": asked, "workload": {"nodes": nodes}},
    }
    pod = pods.of_values(values)["decode"]
    devices = {"nvidia.com/gpu": 16 // nodes}
    assert pod.main["resources"]["requests"] == {**requests, **devices}


@pytest.mark.promise("S5-370")
def test_each_phase_asks_for_its_own_accelerators_and_is_told_of_both() -> None:
    values = {
        "model": {"uri": "pvc://models/m"},
        "engine": {"tensorParallel": 4, "decodeTensorParallel": 8},
        "worker": {"enabled": True},
    }
    devices, told = {}, {}
    for pod in pods.of(chart_renders.manifests(values)):
        if pod.component in ("prefill", "decode", "worker"):
            devices[pod.component] = pod.main["resources"]["limits"]["nvidia.com/gpu"]
            options = pod.settings["engine_options"]
            told[pod.component] = [options.get(f"{of}tensor_parallel") for of in ("", "decode_")]
    assert devices == {"prefill": 4, "decode": 8, "worker": 4}
    assert told == {"prefill": [4, 8], "decode": [4, 8], "worker": [4, None]}


_FORCED = ("UCX_TLS", "MC_FORCE_HCA", "SGLANG_DISAGGREGATION_NIXL_BACKEND", "FI_PROVIDER")


@pytest.mark.promise("S5-422")
@pytest.mark.parametrize(
    ("by", "provider", "expected"),
    [
        ("nixl", "", ("^tcp", None, None, None)),
        ("nixl", "efa", (None, None, "LIBFABRIC", "efa")),
        ("nixl", "verbs", (None, None, "LIBFABRIC", "verbs")),
        ("mooncake", "", (None, "1", None, None)),
    ],
)
def test_what_hands_kv_over_is_told_both_phases_and_kept_from_tcp(
    by: str, provider: str, expected: tuple[str | None, ...]
) -> None:
    values = {
        "model": {"uri": "pvc://models/m"},
        "worker": {"enabled": True},
        "kvTransfer": {
            "backend": by,
            "requireRdma": True,
            "rdma": {"enabled": True},
            "libfabric": {"provider": provider},
        },
    }
    told = {}
    for component, pod in pods.of_values(values).items():
        if component in ("prefill", "decode", "worker"):
            variables = {each["name"]: each.get("value") for each in pod.main["env"]}
            forced = {name: variables.get(name) for name in _FORCED}
            assert (variables.get("FI_EFA_USE_DEVICE_RDMA") == "1") is (provider == "efa")
            told[component] = (pod.settings["engine_options"].get("transfer_backend"), forced)
    forced = dict(zip(_FORCED, expected, strict=True))
    chosen = None if by == "nixl" else by
    assert told == {
        "prefill": (chosen, forced),
        "decode": (chosen, forced),
        "worker": (None, forced),
    }


@pytest.mark.promise("S5-371")
def test_data_parallel_groups_take_no_accelerators_of_their_own() -> None:
    values = {
        "model": {"uri": "pvc://models/m"},
        "engine": {"tensorParallel": 8, "dataParallel": 8, "decodeDataParallel": 4},
        "worker": {"enabled": True},
    }
    found = {}
    for component, pod in pods.of_values(values).items():
        if component in ("prefill", "decode", "worker"):
            options = pod.settings["engine_options"]
            groups = [options.get(f"{of}data_parallel") for of in ("", "decode_")]
            found[component] = (pod.main["resources"]["limits"]["nvidia.com/gpu"], *groups)
    assert found == {"prefill": (8, 8, 4), "decode": (8, 8, 4), "worker": (8, 8, None)}


@pytest.mark.parametrize(("decode", "devices"), [(0, 4), (1, 2)])
def test_groups_of_layers_have_accelerators_each(decode: int, devices: int) -> None:
    values = {
        "model": {"uri": "pvc://models/m"},
        "engine": {"tensorParallel": 4, "pipelineParallel": 2, "decodePipelineParallel": decode},
        "prefill": {"workload": {"nodes": 2}},
        "decode": {"workload": {"nodes": 2}},
        "worker": {"enabled": True},
    }
    found = {
        component: pod.main["resources"]["limits"]["nvidia.com/gpu"]
        for component, pod in pods.of_values(values).items()
        if component in ("prefill", "decode", "worker")
    }
    assert found == {"prefill": 4, "decode": devices, "worker": 8}


@pytest.mark.parametrize("uri", ["", "hf://org/model"])
def test_a_memory_limit_of_a_worker_s_own_stays_as_it_is(uri: str) -> None:
    own = {"decode": {"resources": {"limits": {"memory": "5Gi"}}}, "model": {"uri": uri}}
    limits = pods.of_values(own)["decode"].main["resources"]["limits"]
    assert limits["memory"] == "5Gi"


@pytest.mark.promise("S5-317")
@one_case("pod", all_pods(["bucket"], (*COMPONENTS[:1], *COMPONENTS[2:], "model")))
def test_a_model_of_a_bucket_is_fetched_to_where_it_is_served_from(pod: Pod) -> None:
    (fetch,) = (each for each in pod.containers if each["name"] == "fetch-model")
    variables = {each["name"]: each["value"] for each in fetch["env"]}
    assert variables["AWS_ENDPOINT_URL"] == "http://minio.storage:9000"
    assert variables["AWS_ALLOW_HTTP"] == "true"
    assert fetch["command"][-1] == "s3://models/qwen3-8b/2026-11"
    assert fetch["args"][0] == "--to=/models/models--qwen3-8b--2026-11"
    assert not any("--revision" in each for each in fetch["args"])
    if pod.component != "model":
        assert pod.settings["model_path"] == "/models/models--qwen3-8b--2026-11"
        assert pod.settings["served_model_name"] == "2026-11"


def test_a_bucket_s_port_is_opened_to_whatever_fetches() -> None:
    for component in ("frontend", "prefill", "decode", "model"):
        policy = pods.by_name("bucket", "NetworkPolicy")[f"tandem-{component}"]["spec"]
        assert {"ports": [{"port": 9000}]} in policy["egress"]
