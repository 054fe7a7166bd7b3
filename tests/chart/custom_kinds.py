"""JSON schemas of the custom resources that the chart makes: the fields it uses, and no other."""

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string", "minLength": 1}
FREE: Schema = {"type": "object"}


def shape(required: str, **properties: Schema) -> Schema:
    """An object without other keys."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


def items(of: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": of}


_ISSUER = shape("name", name=TEXT, kind={"enum": ["Issuer", "ClusterIssuer"]})
_RULE = {
    **shape("expr", alert=TEXT, record=TEXT, expr=TEXT, labels=FREE, annotations=FREE),
    "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
}
_RULE["properties"]["for"] = TEXT
_BACKEND = shape("name port", name=TEXT, port={"type": "integer"})
_ROUTE_RULE = shape(
    "matches backendRefs",
    matches=items(shape("path", path=shape("type value", type=TEXT, value=TEXT))),
    timeouts=shape("request", request=TEXT),
    backendRefs=items(_BACKEND),
)


def _monitor(endpoints: str) -> Schema:
    endpoint = shape("port", port=TEXT, path=TEXT, interval=TEXT, scrapeTimeout=TEXT)
    selector = shape("matchLabels", matchLabels=FREE)
    own = {"namespaceSelector": shape("matchNames", matchNames=items(TEXT)), "jobLabel": TEXT}
    return shape(f"selector {endpoints}", selector=selector, **own, **{endpoints: items(endpoint)})


SPECS: dict[tuple[str, str], Schema] = {
    ("cert-manager.io/v1", "Certificate"): shape(
        "secretName issuerRef dnsNames",
        secretName=TEXT,
        issuerRef=_ISSUER,
        commonName=TEXT,
        dnsNames=items(TEXT),
        usages=items(TEXT),
        privateKey=shape(
            "algorithm", algorithm=TEXT, size={"type": "integer"}, rotationPolicy=TEXT
        ),
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): shape(
        "parentRefs rules",
        parentRefs=items(shape("name", name=TEXT, namespace=TEXT)),
        hostnames=items(TEXT),
        rules=items(_ROUTE_RULE),
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): shape(
        "scaleTargetRef triggers",
        scaleTargetRef=shape("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount={"type": "integer"},
        maxReplicaCount={"type": "integer"},
        pollingInterval={"type": "integer"},
        cooldownPeriod={"type": "integer"},
        fallback=shape(
            "failureThreshold replicas",
            failureThreshold={"type": "integer"},
            replicas={"type": "integer"},
        ),
        advanced=shape("horizontalPodAutoscalerConfig", horizontalPodAutoscalerConfig=FREE),
        triggers=items(
            shape(
                "type metadata",
                type=TEXT,
                metricType=TEXT,
                metadata={**FREE, "additionalProperties": TEXT},
            )
        ),
    ),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): shape(
        "leaderWorkerTemplate",
        replicas={"type": "integer", "minimum": 0},
        startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
        networkConfig=shape(
            "subdomainPolicy", subdomainPolicy={"enum": ["Shared", "UniquePerReplica"]}
        ),
        rolloutStrategy=shape(
            "type",
            type={"const": "RollingUpdate"},
            rollingUpdateConfiguration=shape(
                "maxUnavailable maxSurge",
                maxUnavailable={"type": "integer"},
                maxSurge={"type": "integer"},
            ),
        ),
        leaderWorkerTemplate=shape(
            "workerTemplate size",
            size={"type": "integer", "minimum": 1},
            restartPolicy={"enum": ["RecreateGroupOnPodRestart", "None"]},
            # A pod template, which test_chart_renders validates as that of a Deployment.
            workerTemplate=shape("metadata spec", metadata=FREE, spec=FREE),
        ),
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): _monitor("podMetricsEndpoints"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _monitor("endpoints"),
    ("monitoring.coreos.com/v1", "PrometheusRule"): shape(
        "groups", groups=items(shape("name rules", name=TEXT, interval=TEXT, rules=items(_RULE)))
    ),
}
