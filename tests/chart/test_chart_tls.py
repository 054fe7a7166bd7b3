"""Certificates between the components: who makes them, who mounts which, and what renders twice
alike.
"""

from __future__ import annotations

import re
from typing import Any

import chart_renders
import pods
import pytest
import yaml
from chart_renders import NAMESPACE, RELEASE, SETS, Manifest
from one_case import one_case
from pods import Pod, by_name

from tandem import cli
from tandem.wire.tls import ROLES, role_name
from tandem_tools import certificate_stores
from tandem_tools.certificate_issuing import VOUCHER_FILE

KEPT = [name for name in SETS if name not in ("tls", "existing-secrets", "mesh")]
"""The sets in which the chart makes the certificates itself."""
KINDS = ("Deployment", "Role", "RoleBinding", "ServiceAccount", "NetworkPolicy")


def of_tls(name: str, kind: str) -> list[Manifest]:
    return [
        each
        for each in by_name(name, kind).values()
        if each["metadata"]["labels"].get("app.kubernetes.io/component") == "tls"
    ]


def rules(name: str) -> Any:
    (role,) = of_tls(name, "Role")
    return role["rules"]


def settings(name: str, component: str) -> Any:
    return pods.of_set(name)[component].settings


def keeper(name: str) -> Pod:
    """What makes the certificates."""
    return pods.of_set(name)["tls"]


def arguments(name: str) -> Any:
    """The command line of `keeper`, as the command reads it."""
    main = keeper(name).main
    return cli.parsed([*main["command"][1:], *main["args"]])


def kept_secrets(name: str) -> list[str]:
    given = arguments(name)
    return sorted([*given.secrets, given.voucher_secret])


def test_no_template_asks_for_chance_time_or_the_cluster() -> None:
    """So rendering again gives the same bytes, which GitOps compares."""
    values = chart_renders.values("default")
    again = chart_renders.chart().render(dict(values), name=RELEASE, namespace=NAMESPACE)
    assert again == chart_renders.texts(values)
    forbidden = re.compile(
        r"\b(rand\w+|gen\w+Cert\w*|genCA\w*|genPrivateKey|uuidv4|now|lookup|shuffle)\b"
    )
    for path in (chart_renders.CHART / "templates").rglob("*"):
        if path.is_file():
            actions = re.findall(r"\{\{-?(?! */\*)(.*?)\}\}", path.read_text("utf-8"), re.DOTALL)
            asked = {found[0] for each in actions for found in forbidden.finditer(each)}
            # Who scales a live workload: nothing is live where a render does not see the cluster.
            assert asked <= ({"lookup"} if path.name == "_autoscaling.tpl" else set()), path.name


def roles(name: str) -> list[str]:
    """Those that a set has pods of."""
    return [each for each in ROLES if each in pods.of_set(name)]


@one_case("name", [name for name in SETS if name != "mesh"])
def test_components_speak_tls_in_every_set_that_does_not_forbid_it(name: str) -> None:
    for component in roles(name):
        given = settings(name, component)
        assert given["tls_cert"] == "/etc/tandem-tls/tls.crt"
        assert given["tls_key"] == "/etc/tandem-tls/tls.key"
        assert given["tls_ca"] == "/etc/tandem-tls/ca.crt"


@one_case("name", ["tls", "existing-secrets", "mesh"])
def test_where_others_make_the_certificates_the_controller_is_not_there(name: str) -> None:
    assert not [each for kind in KINDS for each in of_tls(name, kind)]
    assert ("tls_cert" in settings(name, "router")) is (name != "mesh")


@pytest.mark.promise("S5-125", "S6-159")
@one_case("name", [*KEPT, "existing-secrets"])
def test_a_pod_mounts_its_own_certificate_and_no_other(name: str) -> None:
    for component in roles(name):
        secrets = [
            volume["secret"]
            for volume in pods.of_set(name)[component].spec["volumes"]
            if volume["name"] == "tls"
        ]
        assert [secret["items"] for secret in secrets] == [
            [
                {"key": f"{component}.crt", "path": "tls.crt"},
                {"key": f"{component}.key", "path": "tls.key"},
                {"key": "ca.crt", "path": "ca.crt"},
            ]
        ]
        keys = {item["key"] for item in secrets[0]["items"]}
        assert keys <= set(certificate_stores.CERTIFICATE_FILES)


def test_cert_manager_makes_a_certificate_for_each_role_which_that_role_mounts() -> None:
    made = by_name("tls", "Certificate")
    for role in roles("tls"):
        spec = made[f"tandem-{role}-tls"]["spec"]
        assert spec["dnsNames"] == [role_name(role, settings("tls", role)["tls_peer_name"])]
        assert set(spec["usages"]) == {"server auth", "client auth"}
        (mounted,) = (
            volume["secret"]["secretName"]
            for volume in pods.of_set("tls")[role].spec["volumes"]
            if volume["name"] == "tls"
        )
        assert mounted == spec["secretName"]


@pytest.mark.promise("S6-159")
@one_case("name", KEPT)
def test_no_pod_mounts_the_key_of_the_ca(name: str) -> None:
    (authority,) = (each for each in kept_secrets(name) if each.endswith("-ca"))
    assert authority not in yaml.safe_dump(
        [pod.spec["volumes"] for pod in pods.of(chart_renders.of_set(name))]
    )


@pytest.mark.promise("S6-190")
@one_case("name", KEPT)
def test_routers_alone_mount_the_voucher_key_that_the_controller_made(name: str) -> None:
    made = arguments(name).voucher_secret
    for pod in pods.of(chart_renders.of_set(name)):
        mounted = [volume for volume in pod.spec["volumes"] if made in yaml.safe_dump(volume)]
        if pod.component != "router":
            assert mounted == []
            continue
        (volume,) = mounted
        assert [item["key"] for item in volume["secret"]["items"]] == [VOUCHER_FILE]
        (mount,) = (each for each in pod.main["volumeMounts"] if each["name"] == volume["name"])
        path = f"{mount['mountPath']}/{volume['secret']['items'][0]['path']}"
        assert settings(name, "router")["voucher_key_file"] == path


@one_case("name", ["tls", "mesh"])
def test_without_the_controller_and_without_a_secret_routers_sign_nothing(name: str) -> None:
    assert "voucher_key_file" not in settings(name, "router")
    volumes = pods.of_set(name)["router"].spec["volumes"]
    assert "voucher-key" not in [volume["name"] for volume in volumes]


def test_a_voucher_key_of_the_operator_s_is_used_instead_of_the_controller_s() -> None:
    given = {"router": {"voucherKey": {"existingSecret": "mine", "key": "a.key"}}}
    router = pods.of_values(given)["router"]
    (volume,) = (each for each in router.spec["volumes"] if each["name"] == "voucher-key")
    assert volume["secret"]["secretName"] == "mine"
    assert volume["secret"]["items"] == [{"key": "a.key", "path": "voucher.key"}]


@pytest.mark.promise("S5-127", "S6-159")
@one_case("name", KEPT)
def test_the_role_names_three_secrets_and_the_account_that_they_go_with(name: str) -> None:
    """To make one is the only right that Kubernetes cannot confine to names."""
    (binding,) = of_tls(name, "RoleBinding")
    (account,) = of_tls(name, "ServiceAccount")
    own = account["metadata"]["name"]
    names = kept_secrets(name)
    assert len(names) == 3
    assert [
        (rule["resources"], rule.get("resourceNames"), rule["verbs"]) for rule in rules(name)
    ] == [
        (["secrets"], names, ["get", "update"]),
        (["secrets"], None, ["create"]),
        (["serviceaccounts"], [own], ["get"]),
    ]
    assert [subject["name"] for subject in binding["subjects"]] == [own]
    assert keeper(name).spec["serviceAccountName"] == own


@pytest.mark.promise("S6-500")
@one_case("name", KEPT)
def test_no_secret_is_rendered_so_that_nobody_who_replaces_objects_empties_one(name: str) -> None:
    """Helm's --force-replace, kubectl replace and Argo CD's Replace=true among them."""
    kept = kept_secrets(name)
    rendered = {each["metadata"]["name"] for each in by_name(name, "Secret").values()}
    assert not rendered.intersection(kept)
    assert not by_name(name, "CronJob")


@pytest.mark.promise("S6-500")
@one_case("name", KEPT)
def test_the_controller_runs_what_the_command_takes(name: str) -> None:
    """By the image of the chart, for the Secrets and roles that components ask for."""
    found, given = keeper(name), arguments(name)
    assert found.owner.startswith("Deployment/")
    assert found.main["command"][:2] == ["tandem", "certificates"]
    assert found.main["image"] == pods.of_set(name)["router"].main["image"]
    assert given.keep
    assert given.secrets[0].endswith("-ca")
    assert given.namespace == chart_renders.NAMESPACE
    (account,) = of_tls(name, "ServiceAccount")
    assert given.owner == account["metadata"]["name"]
    (port,) = found.main["ports"]
    assert given.metrics_listen.endswith(f":{port['containerPort']}")
    assert port["name"] == found.main["readinessProbe"]["httpGet"]["port"] == "metrics"
    for role in roles(name):
        assert given.peer_name == settings(name, role)["tls_peer_name"]
        (mounted,) = (
            volume["secret"]["secretName"]
            for volume in pods.of_set(name)[role].spec["volumes"]
            if volume["name"] == "tls"
        )
        assert mounted == given.secrets[1]


def test_the_shortest_life_that_is_taken_is_days() -> None:
    objects = chart_renders.manifests({"tls": {"controller": {"certificateDays": 7}}})
    assert any("--days=7" in pod.main.get("args", ()) for pod in pods.of(objects))
    with pytest.raises(Exception, match="certificateDays"):
        chart_renders.manifests({"tls": {"controller": {"certificateDays": 6}}})


@one_case("name", lambda: [name for name in KEPT if by_name(name, "NetworkPolicy")])
def test_the_controller_is_let_out_to_the_api_alone_and_who_reads_metrics_in(name: str) -> None:
    """Also where the namespace denies all that no policy allows."""
    (policy,) = of_tls(name, "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert [rule["ports"] for rule in policy["spec"]["ingress"]] == [[{"port": "metrics"}]]
    assert policy["spec"]["egress"] == [{"ports": [{"port": 443}, {"port": 6443}]}]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= keeper(name).labels.items()


def test_two_installations_bear_different_names_unless_told_otherwise() -> None:
    names = {settings(name, "router")["tls_peer_name"] for name in ("default", "restricted", "tls")}
    assert names == {"tandem.tandem", settings("restricted", "router")["tls_peer_name"]}
    assert settings("existing-secrets", "router")["tls_peer_name"] == "serving.example"


@one_case("name", ["*", "Tandem", "a..b", "a" * 201])
def test_a_peer_name_that_no_certificate_could_bear_is_refused(name: str) -> None:
    with pytest.raises(Exception, match="peerName"):
        chart_renders.manifests({"tls": {"peerName": name}})
