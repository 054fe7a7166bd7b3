"""Whether everything that should be there is, and takes work."""

from __future__ import annotations

from monitoring.rules import PODS, START_SECONDS, Alert, RuleGroup

STALE_SECONDS = 600
"""More than a watch may be silent: it ends after 240 s and begins anew."""
EXPIRY_DAYS = 7
_WORKERS = ("prefill_worker", "decode_worker")
"""In a release of aggregated workers alone there are none."""


_AGGREGATED = 'tandem_build_info{component="aggregated_worker"}'


_STARTED_AGAIN = "changes(process_start_time_seconds[1h]) > 0"
_LOADS = f"""(
  tandem_worker_starting == 1
  unless on (namespace, job, pod, instance) {_STARTED_AGAIN}
)"""
"""Workers that load their model, and have not ended before: nothing is wrong with these. One that
is started again was lost, however long it loads.
"""
_PODS = f'pod=~"{PODS}-(frontend|router|prefill|decode|worker|tls|model)-.*"'
_DOWNLOADS = f"kube_pod_init_container_status_running{{{_PODS}}} == 1"
"""Pods whose container waits for a download; told by kube-state-metrics, where it is there."""
_CANNOT_BE_MADE = (
    "ContainerCreating|CreateContainer.*|ErrImagePull|ImagePullBackOff|InvalidImageName"
)


def _absent(component: str) -> str:
    return f'absent(tandem_build_info{{component="{component}"}})'


def _none_ready(name: str, phase: str) -> Alert:
    return Alert(
        name=name,
        severity="critical",
        after="2m",
        summary=f"No {phase} worker takes work in {{place}}.",
        description=f"Every request needs a {phase} worker, so every request fails.",
        expression=f"""
            sum by (namespace, job) (tandem_worker_ready{{phase="{phase}"}}) == 0
            unless on (namespace, job) {_LOADS}
            or absent(tandem_worker_ready{{phase="{phase}"}}) unless on () {_DOWNLOADS}""",
    )


_AVAILABLE = (
    _none_ready("TandemNoReadyPrefill", "prefill"),
    _none_ready("TandemNoReadyDecode", "decode"),
    Alert(
        name="TandemNoReadyPair",
        severity="critical",
        after="2m",
        summary="Router {pod} of {place} has no pair of workers.",
        description="Workers may be ready, but none of prefill fits one of decode, or the router"
        " does not see them.",
        expression=f"""
            tandem_router_ready_pairs == 0
            unless on (namespace, job) {_LOADS}
            unless on (namespace, job, pod, instance) tandem_router_draining == 1
            unless on (namespace, job, pod, instance) (
              tandem_router_served_workers{{phase="decode"}} == 0
              and tandem_router_discovered_workers{{phase="decode"}} > 0
            )""",
    ),
    Alert(
        name="TandemFrontendNotReady",
        severity="critical",
        after="5m",
        summary="Frontend {pod} of {place} would refuse a request.",
        description="The frontend has no stream to a router, or its router has no pair for the"
        " model.",
        expression=f"""
            tandem_frontend_ready == 0
            unless on (namespace, job) {_LOADS}
            unless on (namespace, job, pod, instance) tandem_frontend_draining == 1""",
    ),
    Alert(
        name="TandemWorkerNotReady",
        after="10m",
        summary="{phase} worker {pod} of {place} is not ready.",
        description="The worker has loaded its model, does not drain, and takes no work.",
        expression="""
            tandem_worker_ready == 0
            unless on (namespace, job, pod, instance) tandem_worker_starting == 1
            unless on (namespace, job, pod, instance) tandem_worker_draining == 1""",
    ),
    Alert(
        name="TandemWorkerStartLong",
        after="1m",
        summary="Worker {pod} of {place} has been starting for long.",
        description="The worker's start began {{ $value | humanizeDuration }} ago, more than half"
        " of the time that a start may take. A worker takes no work until its model is loaded.",
        expression=f"""
            time() - process_start_time_seconds > 0.5 * {START_SECONDS}
            and on (namespace, job, pod, instance) tandem_worker_starting == 1""",
    ),
    Alert(
        name="TandemPodCannotStart",
        after="10m",
        summary="{pod} in {namespace} waits for its container to be made.",
        description="A volume, a Secret or an image is missing: the pod's events say which.",
        expression=f"""
            max by (namespace, pod) (
              kube_pod_container_status_waiting_reason{{reason=~"{_CANNOT_BE_MADE}",{_PODS}}} > 0
            )
            or max by (namespace, pod) (
              kube_pod_init_container_status_waiting{{{_PODS}}} == 1
              unless on (namespace, pod) kube_pod_init_container_status_running{{{_PODS}}} == 1
              unless on (namespace, pod) kube_pod_init_container_status_terminated{{{_PODS}}} == 1
            )""",
    ),
)
_SEEN = (
    Alert(
        name="TandemMetricsAbsent",
        severity="critical",
        after="5m",
        summary="Prometheus sees no {component} of {place}.",
        description="Prometheus scrapes no {component}: other alerts are blind to it.",
        expression="\nor ".join(
            (
                *(_absent(each) for each in ("frontend", "router")),
                *(
                    f"({_absent(each)} unless on () {_AGGREGATED} unless on () {_DOWNLOADS})"
                    for each in _WORKERS
                ),
            )
        ),
    ),
    Alert(
        name="TandemTargetDown",
        after="5m",
        summary="{pod} of {place} does not answer scrapes.",
        description="The pod's metrics port is closed, or the process's event loop is stuck. A"
        " worker that loads its model answers.",
        expression="up == 0",
    ),
    Alert(
        name="TandemProcessRestarting",
        after="0m",
        summary="{pod} of {place} restarts again and again.",
        description="The pod's process started {{ $value }} times anew within half an hour.",
        expression="changes(process_start_time_seconds[30m]) > 2",
    ),
)
_ROUTER = (
    Alert(
        name="TandemQueueGrowing",
        after="10m",
        summary="Requests come faster to {place} than they are served.",
        description="{{ $value }} sequences wait for a pair at {pod}, and more each minute.",
        expression="""
            tandem_router_queue_length > 10
            and deriv(tandem_router_queue_length[10m]) > 0""",
    ),
    Alert(
        name="TandemQueueNearlyFull",
        severity="critical",
        after="2m",
        summary="Router {pod} of {place} is about to refuse requests.",
        description="The router's queue is {{ $value | humanizePercentage }} full; past 100 %"
        " requests are refused with status 429.",
        expression="tandem_router_queue_length / (tandem_router_queue_limit > 0) > 0.8",
    ),
    Alert(
        name="TandemPairsRejected",
        after="30m",
        summary="{phase} workers of {place} have no partner.",
        description="{{ $value }} workers are connected to router {pod}, and no pair"
        " uses them: their fingerprint or revision fits no worker of the other phase, or they"
        " drain.",
        expression="""
            count by (namespace, job, pod, phase) (tandem_router_worker_slots)
            - on (namespace, job, pod, phase) tandem_router_routable_workers > 0""",
    ),
    Alert(
        name="TandemLegsOverdue",
        after="10m",
        summary="Worker {worker} of {place} does not close cancelled sequences.",
        description="Sequences that the worker should have closed hold {{ $value }} of its slots.",
        expression="tandem_router_worker_overdue_legs > 0",
    ),
    Alert(
        name="TandemWorkerUnreadable",
        after="0m",
        summary="Worker {worker} of {place} sends unreadable messages.",
        description="Router {pod} has had such a message within the last quarter of an"
        " hour. Sequences that the worker runs end with worker_error, and a worker that goes on is"
        " ejected.",
        expression="increase(tandem_router_worker_faults_total[15m]) > 0",
    ),
    Alert(
        name="TandemEngineStalled",
        after="0m",
        summary="The engine of worker {worker} of {place} makes no step.",
        description="The engine has work. Router {pod} gives the worker nothing new,"
        " and takes the worker's sequences away once stall_failover_seconds are over.",
        expression="tandem_router_worker_stalled > 0",
    ),
    Alert(
        name="TandemWorkerEjected",
        after="5m",
        summary="Worker {worker} of {place} fails far more often than others.",
        description="Router {pod} gives the worker nothing, or one request at a time."
        " Other workers do its work.",
        expression="tandem_router_worker_ejected > 0",
    ),
)
_CHANGE = (
    Alert(
        name="TandemDrainTimeout",
        after="0m",
        summary="{pod} of {place} cut requests off when it shut down.",
        description="{{ $value }} requests were still open when drain_seconds were over.",
        expression="\nor ".join(
            f"max_over_time(tandem_{each}_drain_aborted_total[15m]) > 0"
            for each in ("worker", "router", "frontend")
        ),
    ),
    Alert(
        name="TandemStaleDiscovery",
        after="5m",
        summary="Router {pod} of {place} does not learn of new workers.",
        description="The router last heard from its source of workers"
        " {{ $value | humanizeDuration }} ago. Requests go on; workers that come now stay idle,"
        " and addresses that go stay listed.",
        expression=f"tandem_router_discovery_age_seconds > {STALE_SECONDS}",
    ),
    Alert(
        name="TandemCertificateExpiry",
        after="1h",
        summary="The certificate {file} of {pod} in {place} ends soon, or cannot be read.",
        description="The certificate ends in {{ $value | humanizeDuration }}. After that no"
        " connection that the certificate secures can be made.",
        expression=f"tandem_tls_certificate_expiry_seconds - time() < {EXPIRY_DAYS} * 86400",
    ),
    Alert(
        name="TandemKeyFileStale",
        after="5m",
        summary="Frontend {pod} of {place} cannot use its key file.",
        description="The keys read before stay in use: new keys are refused, and revoked keys still"
        " work.",
        expression="tandem_frontend_key_file_stale > 0",
    ),
    Alert(
        name="TandemModelNamesFileStale",
        after="5m",
        summary="Frontend {pod} of {place} cannot use its file of models' names.",
        description="The names and weights read before stay in use: new names are not served, and"
        " requests go to the same models as before.",
        expression="tandem_frontend_model_names_file_stale > 0",
    ),
)
_MEMORY = (
    Alert(
        name="TandemHeldBytesHigh",
        after="2m",
        summary="{pod} of {place} is about to refuse requests for want of memory.",
        description="The process holds {{ $value | humanizePercentage }} of max_held_bytes in"
        " bodies, prompts, collected answers and backlogs; past 75 % new requests are refused with"
        " status 429, and at 100 % whoever holds the most is ended.",
        expression="\nor ".join(
            f"tandem_{each}_held_bytes / tandem_{each}_held_bytes_limit > 0.6"
            for each in ("worker", "router", "frontend")
        ),
    ),
)
_READING = (
    Alert(
        name="TandemBodiesWaiting",
        after="5m",
        summary="Long prompts wait at {pod} of {place} before they are read.",
        description="{{ $value }} bodies above 16 KiB wait for a process that reads them.",
        expression="sum without (size) (tandem_frontend_waiting_bodies) > 10",
    ),
)
_CERTIFICATES = (
    Alert(
        name="TandemCertificatesNotKept",
        after="5m",
        summary="The certificates of {place} are not kept.",
        description="The process that makes certificates fails, or does not run: no certificate is"
        " renewed. Pods that run go on; a pod that starts hangs once a Secret with certificates is"
        " gone.",
        expression="tandem_certificates_kept == 0 or absent(tandem_certificates_kept)",
    ),
)
GROUPS = (
    RuleGroup("tandem.ready.alerts", _AVAILABLE),
    RuleGroup("tandem.seen.alerts", _SEEN),
    RuleGroup("tandem.router.alerts", _ROUTER),
    RuleGroup("tandem.change.alerts", _CHANGE),
    RuleGroup("tandem.memory.alerts", _MEMORY),
    RuleGroup("tandem.reading.alerts", _READING),
    RuleGroup("tandem.certificates", _CERTIFICATES),
)
