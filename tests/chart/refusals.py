"""Values that cannot work: each by the name of its case."""

from __future__ import annotations

from typing import Any

GPU = {"model": {"uri": "pvc://m"}}
PHASES = ("prefill", "decode")
VLLM = {**GPU, "engine": {"type": "vllm"}}
RDMA = {"enabled": True}
NODES = {**GPU, "engine": {"tensorParallel": 2}, "decode": {"workload": {"nodes": 2}}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    # Case -> what the templates refuse, and what they say.
    "name-of-no-service": (
        {"fullnameOverride": "My_Bad"},
        'no Service can be called "My_Bad", which every name here begins with: set fullname',
    ),
    "own-label": (
        {"commonLabels": {"app.kubernetes.io/name": "x"}},
        "the chart sets the label app.kubernetes.io/name itself: leave it out of commonLabels",
    ),
    "settings-as-an-annotation": (
        {"router": {"podAnnotations": {"tandem/settings": "{}"}}},
        "leave tandem/settings out of router.podAnnotations",
    ),
    "own-label-of-pods": (
        {"router": {"podLabels": {"helm.sh/chart": "x"}}},
        "the chart sets the label helm.sh/chart itself: leave it out of router.podLabels",
    ),
    "more-code-than-a-pod-carries": (
        {"code": {"files": {"a.py": "#" * 204_800}}},
        "put the code into an image (code.image) or a claim (code.existingClaim)",
    ),
    "limits-of-keys-shared-by-nobody-knows-how-many": (
        {"frontend": {"replicas": None, "apiKeysFile": {"existingSecret": "s"}}},
        "say how many, in frontend.replicas or frontend.autoscaling.minReplicas",
    ),
    "ipc-lock": (
        {"kvTransfer": {"rdma": {**RDMA, "ipcLock": True}}},
        "kvTransfer.rdma.ipcLock needs a namespace that allows it: set global.podSecurity",
    ),
    "host-network": (
        {"kvTransfer": {"rdma": {**RDMA, "hostNetwork": True}}},
        "kvTransfer.rdma.hostNetwork needs a namespace that allows it: set global.podSecurity",
    ),
    "host-network-with-policies": (
        {
            "global": {"podSecurity": "privileged"},
            "kvTransfer": {"rdma": {**RDMA, "hostNetwork": True}},
        },
        "set networkPolicy.enabled=false with kvTransfer.rdma.hostNetwork",
    ),
    "no-model": (
        {"engine": {"type": "sglang"}},
        "engine.type=sglang needs a model, which its image does not hold: set model.uri",
    ),
    "model-on-the-node": (
        {"model": {"uri": "file:///models/m"}},
        "a model.uri of file:// is a folder of the node: set global.podSecurity=privileged",
    ),
    "cache-on-the-node": (
        {"model": {"uri": "hf://a/b", "cache": {"type": "hostPath"}}},
        "model.cache.type=hostPath is a folder of the node: set global.podSecurity=privileged",
    ),
    "rdma-without-devices": (
        {"kvTransfer": {"requireRdma": True}},
        "kvTransfer.requireRdma needs devices: set kvTransfer.rdma.enabled=true",
    ),
    "rdma-over-tcp": (
        {"kvTransfer": {"requireRdma": True, "rdma": RDMA, "ucx": {"tls": "rc,tcp"}}},
        "kvTransfer.ucx.tls allows TCP, which kvTransfer.requireRdma forbids",
    ),
    "libfabric-of-a-simulated-worker": (
        {"kvTransfer": {"libfabric": {"provider": "efa"}}},
        "kvTransfer.libfabric.provider: a simulated worker hands KV over by UCX",
    ),
    "libfabric-with-mooncake": (
        {**GPU, "kvTransfer": {"backend": "mooncake", "libfabric": {"provider": "efa"}}},
        "kvTransfer.libfabric.provider is NIXL's: set kvTransfer.backend=nixl",
    ),
    "libfabric-with-ucx": (
        {**GPU, "kvTransfer": {"ucx": {"tls": "rc"}, "libfabric": {"provider": "efa"}}},
        "kvTransfer.ucx is not read with kvTransfer.libfabric.provider",
    ),
    "libfabric-over-tcp": (
        {
            **GPU,
            "kvTransfer": {"requireRdma": True, "rdma": RDMA, "libfabric": {"provider": "tcp"}},
        },
        "kvTransfer.libfabric.provider is tcp, which kvTransfer.requireRdma forbids",
    ),
    "hub-endpoint-of-gs": (
        {"model": {"uri": "gs://models/a", "hubEndpoint": "http://minio:9000"}},
        "gs:// has none of its own: leave it empty with gs://models/a",
    ),
    "preload-to-nowhere": (
        {"model": {"uri": "hf://a/b", "preload": {"enabled": True}}},
        "it needs a model.uri of hf://, s3:// or gs:// and model.cache.type=pvc",
    ),
    "empty-cache": (
        {"model": {"uri": "hf://a/b", "cache": {"readOnly": True}}},
        "a read-only emptyDir stays empty: set model.cache.readOnly=false",
    ),
    "claim-that-nothing-fills": (
        {"model": {"uri": "hf://a/b", "cache": {"type": "pvc", "readOnly": True}}},
        "nothing fills the claim that model.cache makes: set model.preload.enabled=true",
    ),
    "phases-that-differ": (
        {"prefill": {"engineOptions": {"page_size": 32}}},
        "prefill and decode would never pair: set page_size in engine.options, for both",
    ),
    "mooncake-between-simulations": (
        {"kvTransfer": {"backend": "mooncake"}},
        "kvTransfer.backend: a simulated worker hands KV over by NIXL",
    ),
    "mooncake-by-ucx": (
        {**GPU, "kvTransfer": {"backend": "mooncake", "ucx": {"ibGidIndex": 3}}},
        "kvTransfer.ucx is for NIXL",
    ),
    "nodes-as-server-args": (
        {"engine": {"options": {"server_args": '{"nnodes": 2}'}}},
        "leave nnodes, node_rank and dist_init_addr out of server_args, and set prefill.workload",
    ),
    "two-claims-for-compiled-kernels": (
        {**GPU, "prefill": {"compileCache": {"existingClaim": "mine", "size": "20Gi"}}},
        "prefill.compileCache has two claims: leave existingClaim or size empty",
    ),
    "compiled-kernels-of-a-simulation": (
        {"decode": {"compileCache": {"existingClaim": "mine"}}},
        "decode.compileCache: a simulated worker compiles nothing: set model.uri",
    ),
    "compiled-kernels-of-several-nodes-on-a-claim-of-one": (
        {
            **NODES,
            "decode": {
                "workload": {"nodes": 2},
                "compileCache": {"size": "20Gi", "accessModes": ["ReadWriteOnce"]},
            },
        },
        "decode.compileCache: the nodes of a worker mount its claim at once: set accessModes",
    ),
    "nodes-of-a-simulation": (
        {"decode": {"workload": {"nodes": 2}}, "engine": {"tensorParallel": 2}},
        "decode.workload.nodes: a simulated worker runs on one node: set model.uri",
    ),
    "nodes-that-share-unequally": (
        {**GPU, "engine": {"tensorParallel": 8}, "prefill": {"workload": {"nodes": 3}}},
        "prefill.workload.nodes cannot share 8 accelerators equally",
    ),
    "nodes-that-share-decode-unequally": (
        {
            **GPU,
            "engine": {"tensorParallel": 4, "decodeTensorParallel": 2},
            "decode": {"workload": {"nodes": 4}},
        },
        "decode.workload.nodes cannot share 2 accelerators equally",
    ),
    "ranks-that-hand-over-nothing": (
        {**GPU, "engine": {"tensorParallel": 4, "decodeTensorParallel": 6}},
        "set engine.decodeTensorParallel to a multiple of engine.tensorParallel, or to a part",
    ),
    "groups-of-parts-of-ranks": (
        {**GPU, "engine": {"tensorParallel": 4, "decodeTensorParallel": 6, "dataParallel": 4}},
        "engine.dataParallel must divide engine.tensorParallel, and of decode likewise",
    ),
    "two-certificates": (
        {"tls": {"enabled": True, "existingSecret": "a", "certManager": {"enabled": True}}},
        "tls has two sources of its certificate",
    ),
    "no-issuer": (
        {"tls": {"enabled": True, "certManager": {"enabled": True}}},
        "tls.certManager needs an issuer: set tls.certManager.issuerRef.name",
    ),
    "short-lived-ca": (
        {"tls": {"controller": {"certificateDays": 90, "caDays": 60}}},
        "tls.controller.certificateDays is above tls.controller.caDays",
    ),
    "metrics-for-nobody": (
        {"monitoring": {"podMonitor": {"enabled": True}}},
        "name Prometheus' namespace in networkPolicy.metricsFrom",
    ),
    "metrics-twice": (
        {"monitoring": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}},
        "monitoring.podMonitor and monitoring.serviceMonitor would both scrape every pod",
    ),
    "keys-twice": (
        {"frontend": {"apiKeysFile": {"existingSecret": "keys", "path": "/keys/keys.jsonl"}}},
        "frontend.apiKeysFile has two sources: leave existingSecret or path empty",
    ),
    "unused-certificate": (
        {"tls": {"enabled": False, "existingSecret": "a"}},
        "tls has a certificate that nothing uses: set tls.enabled=true",
    ),
    "no-host": (
        {"frontend": {"ingress": {"enabled": True}}},
        "frontend.ingress needs a host: set frontend.ingress.hosts",
    ),
    "no-gateway": (
        {"frontend": {"httpRoute": {"enabled": True}}},
        "frontend.httpRoute needs a Gateway: set frontend.httpRoute.parentRefs",
    ),
    "router-without-account": (
        {"router": {"serviceAccount": {"create": False}}},
        "set router.serviceAccount.name, or router.discovery=dns",
    ),
    "shares-without-ready-routers": (
        {"router": {"decodeRouters": 2, "discovery": "dns"}},
        "router.decodeRouters asks which routers are ready: set router.discovery=kubernetes",
    ),
    "bounds-crossed": (
        {"frontend": {"autoscaling": {"type": "hpa", "minReplicas": 9, "maxReplicas": 2}}},
        "frontend.autoscaling.minReplicas is above maxReplicas: lower it",
    ),
    "nothing-to-scale-by": (
        {"frontend": {"autoscaling": {"type": "hpa", "targetCPUUtilization": 0}}},
        "frontend.autoscaling has nothing to go by: set one of its targets above 0",
    ),
    "nothing-seen": (
        {"prefill": {"autoscaling": {"type": "hpa", "minReplicas": 0}}},
        "prefill.autoscaling.minReplicas=0 needs somebody who sees that requests wait",
    ),
    "one-phase-of-nothing": (
        {"decode": {"autoscaling": {"type": "keda", "minReplicas": 0}}},
        "set prefill.autoscaling.minReplicas=0 too",
    ),
    "aggregated-nothing-seen": (
        {"worker": {"enabled": True, "autoscaling": {"type": "hpa", "minReplicas": 0}}},
        "worker.autoscaling.minReplicas=0 needs somebody who sees that requests wait",
    ),
    "share-of-nothing": (
        {"router": {"autoscaling": {"type": "hpa"}, "resources": {"requests": {"cpu": None}}}},
        "router.autoscaling.targetCPUUtilization is a share of the request: set router.resources",
    ),
    "token-processes-of-sim": (
        {"decode": {"tokenProcesses": 2}},
        "decode.tokenProcesses: a simulated worker is one process: set model.uri, or leave it at 1",
    ),
    "data-parallel-ranks-with-unequal-parts": (
        {**GPU, "engine": {"tensorParallel": 3, "dataParallel": 3}},
        "set prefill.config.max_sequences to a multiple of 3",
    ),
    "data-parallel-ranks-of-aggregated-workers-with-unequal-parts": (
        {
            **GPU,
            "engine": {"tensorParallel": 3, "dataParallel": 3},
            **{phase: {"config": {"max_sequences": 255}} for phase in PHASES},
            "worker": {"enabled": True},
        },
        "set worker.config.max_sequences to a multiple of 3",
    ),
    "token-processes-of-ranks-on-several-nodes": (
        {
            **GPU,
            "engine": {"tensorParallel": 4, "dataParallel": 2},
            "decode": {"tokenProcesses": 2, "workload": {"nodes": 2}},
        },
        "data-parallel ranks on several nodes send tokens to one process alone: leave decode.token",
    ),
    "token-processes-of-ranks-with-unequal-parts": (
        {
            **GPU,
            "engine": {"tensorParallel": 4, "dataParallel": 2, "decodeDataParallel": 4},
            "decode": {"tokenProcesses": 2, "config": {"max_sequences": 36}},
        },
        "set decode.config.max_sequences to a multiple of 8",
    ),
    "a-privileged-container": (
        {"router": {"securityContext": {"privileged": True}}},
        "router.securityContext asks for privileged"
        ', which Pod Security "restricted" forbids: leave it out, or set global.podSecurity',
    ),
    "a-container-that-may-gain-rights": (
        {"tests": {"securityContext": {"allowPrivilegeEscalation": True}}},
        "tests.securityContext asks for allowPrivilegeEscalation"
        ', which Pod Security "restricted" forbids: leave it out, or set global.podSecurity',
    ),
    "capabilities": (
        {"decode": {"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}},
        "decode.securityContext asks for capabilities.add"
        ', which Pod Security "restricted" forbids: leave it out, or set global.podSecurity',
    ),
    "a-pod-of-root": (
        {"tls": {"controller": {"podSecurityContext": {"runAsUser": 0}}}},
        "tls.controller.podSecurityContext asks for root"
        ', which Pod Security "restricted" forbids: leave it out, or set global.podSecurity',
    ),
    "system-calls-of-all-kinds": (
        {"frontend": {"podSecurityContext": {"seccompProfile": {"type": "Unconfined"}}}},
        "frontend.podSecurityContext asks for seccompProfile Unconfined"
        ', which Pod Security "restricted" forbids: leave it out, or set global.podSecurity',
    ),
    "a-volume-on-the-node": (
        {"prefill": {"extraVolumes": [{"name": "mine", "hostPath": {"path": "/"}}]}},
        "set global.podSecurity=privileged",
    ),
    "a-volume-of-the-chart-s": (
        {"prefill": {"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}},
        'prefill.extraVolumes: the chart has a volume "tmp" itself: give yours another name',
    ),
    "a-mount-of-the-chart-s": (
        {"decode": {"extraVolumeMounts": [{"name": "mine", "mountPath": "/tmp"}]}},
        "decode.extraVolumeMounts: the chart mounts /tmp itself: mount yours elsewhere",
    ),
    "a-request-above-its-limit": (
        {"router": {"resources": {"requests": {"memory": "4Gi"}, "limits": {"memory": "3G"}}}},
        "router.resources: the request of memory, 4Gi, is above its limit, 3G",
    ),
    "a-cpu-request-above-its-limit": (
        {"decode": {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}}},
        "decode.resources: the request of cpu, 2, is above its limit, 1500m",
    ),
    "vllm-without-a-model": (
        {"engine": {"type": "vllm"}},
        "engine.type=vllm needs a model, which its image does not hold: set model.uri",
    ),
    **{
        f"vllm-with-{name}-of-two": (
            {**GPU, "engine": {"type": "vllm", name: 2}},
            f"engine.{name}: a worker of vLLM has engine.tensorParallel accelerators of one node",
        )
        for name in (
            *("dataParallel", "pipelineParallel"),
            *("decodeTensorParallel", "decodeDataParallel"),
        )
    },
    **{
        f"vllm-with-two-nodes-of-{phase}": (
            {**VLLM, phase: {"workload": {"nodes": 2}}},
            f"{phase}.workload.nodes: a worker of vLLM has engine.tensorParallel accelerators",
        )
        for phase in PHASES
    },
    "vllm-with-two-token-processes": (
        {**VLLM, "decode": {"tokenProcesses": 2}},
        "leave decode.tokenProcesses as it is, or set engine.type=sglang",
    ),
    "vllm-by-mooncake": (
        {**VLLM, "kvTransfer": {"backend": "mooncake"}},
        "kvTransfer: vLLM hands KV over by NIXL and UCX: leave backend at nixl",
    ),
    "vllm-by-libfabric": (
        {**VLLM, "kvTransfer": {"libfabric": {"provider": "efa"}}},
        "kvTransfer: vLLM hands KV over by NIXL and UCX: leave backend at nixl",
    ),
    "keda-without-prometheus": (
        {"decode": {"autoscaling": {"type": "keda"}}},
        "decode.autoscaling.type=keda asks Prometheus: set monitoring.prometheusAddress",
    ),
}
LONG = "x" * 64
UNKNOWN: dict[str, dict[str, Any]] = {
    # Case -> what the schema refuses.
    "top": {"replicas": 1},
    "section": {"frontend": {"replica": 1}},
    "type": {"frontend": {"replicas": "two"}},
    "negative": {"decode": {"replicas": -1}},
    "enum": {"engine": {"type": "trt"}},
    "digest": {"image": {"digest": "sha256:short"}},
    "uri": {"model": {"uri": "Qwen/Qwen3-8B"}},
    "hub": {"model": {"uri": "hf://Qwen"}},
    "bucket": {"model": {"uri": "s3://models"}},
    "collector": {"tracing": {"otlpEndpoint": "collector:4318"}},
    "setting": {"frontend": {"config": {"max_open_request": 1}}},
    "setting-of-another": {"router": {"config": {"max_body_bytes": 1}}},
    "setting-type": {"router": {"config": {"max_queue": "many"}}},
    "setting-of-the-chart": {"prefill": {"config": {"listen": "0.0.0.0:1"}}},
    "token-processes-of-prefill": {"prefill": {"tokenProcesses": 2}},
    "no-token-process": {"decode": {"tokenProcesses": 0}},
    "compiled-kernels-that-cannot-be-written": {
        "prefill": {"compileCache": {"accessModes": ["ReadOnlyMany"]}}
    },
    "option": {"engine": {"options": {"pagesize": 1}}},
    "option-of-the-chart": {"prefill": {"engineOptions": {"bootstrap_port": 1}}},
    "port-of-vllm-that-policies-name": {"engine": {"options": {"side_channel_port": 1}}},
    "port": {"frontend": {"service": {"port": 99999}}},
    "address": {"global": {"listen": "::"}},
    "name-in-labels": {"nameOverride": "My Name"},
    "label": {"commonLabels": {"team": 7}},
    "file": {"code": {"files": {"a.py": 1}}},
    "variable": {"frontend": {"extraEnv": ["A=1"]}},
    "volume": {"prefill": {"extraVolumes": [{"emptyDir": {}}]}},
    "host": {"frontend": {"ingress": {"hosts": [{"host": "a"}]}}},
    "resource": {"prefill": {"resources": {"limit": {"cpu": 1}}}},
    "frontend-of-nothing": {"frontend": {"autoscaling": {"type": "keda", "minReplicas": 0}}},
    "family": {"frontend": {"service": {"ipFamilies": ["IPv5"]}}},
    "host-alias": {"router": {"hostAliases": ["10.0.0.1 hub"]}},
    "quantity": {"decode": {"shm": {"sizeLimit": "8 GiB"}}},
    "chain-as-a-text": {"hooks": {"chain": "my:Guard"}},
    "hook-with-another-s-word": {"hooks": {"chain": [{"path": "a:B", "timeout": 5}]}},
    "hook-without-a-path": {"hooks": {"chain": [{"config": {}}]}},
    "hook-that-is-none": {"hooks": {"chain": ["banned_words"]}},
    "hook-in-no-time": {"hooks": {"chain": [{"path": "pii", "timeout_ms": 0}]}},
    "hook-of-no-phase": {"hooks": {"chain": [{"path": "pii", "phases": ["encode"]}]}},
    "section-of-hooks": {"hooks": {"processes": 2}},
    "classifier-that-is-none": {"classifiers": {"entries": ["toxicity"]}},
    "classifier-with-another-s-word": {
        "classifiers": {"entries": [{"path": "webhook", "phases": ["decode"]}]}
    },
    "moderations-by-another-s-word": {
        "frontend": {
            "config": {"moderation_classifiers": {"entries": [{"path": "a:B", "blocks": 1}]}}
        }
    },
    "regeneration-without-end": {"classifiers": {"regenerate": {"times": 100}}},
    "processor-with-another-s-word": {"logitsProcessors": {"ban": {"path": "a:B"}}},
    "processor-for-clients-that-are-none": {"logitsProcessors": {"ban": {"clients": "all"}}},
    "no-sequences": {"decode": {"config": {"max_sequences": 0}}},
    "negative-step": {"engine": {"options": {"step_ms": -1}}},
    "schedule-that-is-none": {"tls": {"job": {"schedule": "every day"}}},
    "budget-in-words": {"decode": {"podDisruptionBudget": {"minAvailable": "half"}}},
    "address-without-a-mask": {"networkPolicy": {"egress": {"apiCIDRs": ["10.0.0.1"]}}},
    "client-without-a-mask": {"frontend": {"service": {"loadBalancerSourceRanges": ["any"]}}},
    "memory-in-odd-units": {"router": {"resources": {"limits": {"memory": "1G1"}}}},
    "negative-cpu": {"decode": {"resources": {"requests": {"cpu": -1}}}},
    "label-with-a-space": {"commonLabels": {"team": "my team"}},
    "label-that-is-too-long": {"commonLabels": {"team": LONG}},
    "label-whose-name-is-none": {"router": {"podLabels": {"my team": "a"}}},
    "registry-with-a-scheme": {"global": {"imageRegistry": "https://registry.internal"}},
    "model-with-a-space": {"model": {"name": "my model"}},
    "probe-of-another-port": {"decode": {"probes": {"liveness": {"httpGet": {"port": 1}}}}},
    "objective": {"monitoring": {"prometheusRule": {"objectives": {"itl": 99}}}},
}
