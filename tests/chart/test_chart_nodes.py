"""A worker on several nodes: a group of pods, of which one leads."""

from __future__ import annotations

import chart_renders
import pods
from chart_renders import Manifest
from one_case import one_case
from pods import LEADS, by_name

SET = "multi-node"
PHASES = ("prefill", "decode")


def group(phase: str) -> Manifest:
    return by_name(SET, "LeaderWorkerSet")[f"tandem-{phase}"]


@one_case("phase", PHASES)
def test_one_set_of_groups_takes_the_place_of_the_deployment(phase: str) -> None:
    assert f"tandem-{phase}" not in by_name(SET, "Deployment")
    template = group(phase)["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    # A rank that starts again finds the others in the middle of something: all start again.
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    # The leader is ready only when its followers are up.
    assert group(phase)["spec"]["startupPolicy"] == "LeaderCreated"


@one_case("phase", PHASES)
def test_the_subdomain_of_a_group_is_not_the_service_of_its_phase(phase: str) -> None:
    """Followers have to find a leader that is not ready yet, and that Service hides it."""
    assert group(phase)["spec"]["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}


@one_case("phase", PHASES)
def test_each_node_holds_its_share_of_the_accelerators(phase: str) -> None:
    limits = pods.of_set(SET)[phase].main["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == 8
    assert limits["rdma/hca"] == 8


@one_case("phase", PHASES)
def test_routers_find_leaders_alone(phase: str) -> None:
    selector = by_name(SET, "Service")[f"tandem-{phase}"]["spec"]["selector"]
    assert LEADS.items() <= selector.items()
    assert (
        not LEADS.keys()
        & by_name("default", "Service")[f"tandem-{phase}"]["spec"]["selector"].keys()
    )


@one_case("phase", PHASES)
@one_case(("rules", "key"), [("ingress", "from"), ("egress", "to")])
def test_the_nodes_of_a_worker_reach_each_other_on_every_port(
    phase: str, rules: str, key: str
) -> None:
    def open_to_itself(name: str) -> bool:
        policy = by_name(name, "NetworkPolicy")[f"tandem-{phase}"]["spec"]
        return any(
            peer.get("podSelector", {}).get("matchLabels", {}).get("app.kubernetes.io/component")
            == phase
            for rule in policy[rules]
            if "ports" not in rule
            for peer in rule.get(key, ())
        )

    assert open_to_itself(SET)
    assert not open_to_itself("default")


@one_case("phase", PHASES)
def test_an_eviction_counts_every_pod_of_the_groups(phase: str) -> None:
    """One pod takes its group along, so a budget of one pod is one of one group."""
    budget = by_name(SET, "PodDisruptionBudget")[f"tandem-{phase}"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert not LEADS.keys() & budget["selector"]["matchLabels"].keys()


def test_a_rollout_replaces_groups_as_it_would_pods() -> None:
    update = {
        phase: group(phase)["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
        for phase in PHASES
    }
    assert update["prefill"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert update["decode"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_its_annotations_are_those_of_the_set_alone() -> None:
    topology = "leaderworkerset.sigs.k8s.io/exclusive-topology"
    assert group("prefill")["metadata"]["annotations"][topology] == "topology.kubernetes.io/rack"
    others = [each for each in chart_renders.of_set(SET) if each is not group("prefill")]
    assert not any(topology in each["metadata"].get("annotations", {}) for each in others)


@one_case("phase", PHASES)
def test_a_pod_of_a_group_is_the_pod_of_a_deployment_and_no_other(phase: str) -> None:
    """Two files spell them out, and only these differences are meant."""
    values = dict(chart_renders.values(SET))
    alone = {"workload": {"nodes": 1}, "extraContainers": [{"name": "beside", "image": "a:1"}]}
    one = pods.of_values({**values, phase: {**values[phase], **alone}})[phase]
    several = pods.of_values(
        {**values, phase: {**values[phase], **alone, "workload": {"nodes": 2}}}
    )[phase]
    own = {
        "env": ["TANDEM_NODE_RANK", "TANDEM_LEADER"],
        "ports": ["nodes"],
    }
    for key, names in own.items():
        added = [each for each in several.main[key] if each not in one.main[key]]
        assert [each["name"] for each in added] == names
        for each in added:
            several.main[key].remove(each)
    for pod in (one, several):
        pod.main.pop("resources")  # those of half the accelerators
    assert one.spec == several.spec
    assert one.labels == {key: several.labels[key] for key in several.labels.keys() - LEADS.keys()}
    assert one.annotations.keys() == several.annotations.keys()
