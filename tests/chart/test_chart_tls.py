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
from chart_renders import SETS, Manifest
from pods import Pod, by_name

from tandem import cli
from tandem.cli import certificate_stores
from tandem.cli.certificate_issuing import VOUCHER_FILE
from tandem.wire.tls import ROLES, role_name

JOB = [name for name in SETS if name not in ("tls", "existing-secrets", "mesh")]
"""The sets in which the chart makes the certificates itself."""
KINDS = ("Job", "CronJob", "Role", "RoleBinding", "ServiceAccount", "Secret", "NetworkPolicy")


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
    return yaml.safe_load(pods.of_set(name)[component].carried("settings")["tandem.yaml"])


def makers(name: str) -> list[Pod]:
    return [pod for pod in pods.of(chart_renders.of_set(name)) if pod.component == "tls"]


@pytest.mark.parametrize("name", SETS)
def test_rendering_again_gives_the_same_bytes(name: str) -> None:
    """What GitOps compares: no random function, no time, no look at the cluster."""
    values = chart_renders.values(name)
    assert chart_renders.texts(values) == chart_renders.texts(values)


def test_no_template_asks_for_chance_time_or_the_cluster() -> None:
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


@pytest.mark.parametrize("name", [name for name in SETS if name != "mesh"])
def test_components_speak_tls_in_every_set_that_does_not_forbid_it(name: str) -> None:
    for component in roles(name):
        given = settings(name, component)
        assert given["tls_cert"] == "/etc/tandem-tls/tls.crt"
        assert given["tls_key"] == "/etc/tandem-tls/tls.key"
        assert given["tls_ca"] == "/etc/tandem-tls/ca.crt"


def test_without_tls_nothing_of_it_is_made() -> None:
    assert not [each for kind in KINDS for each in of_tls("mesh", kind)]
    assert "tls_cert" not in settings("mesh", "router")


@pytest.mark.parametrize("name", ["tls", "existing-secrets"])
def test_where_others_make_the_certificates_the_job_is_not_there(name: str) -> None:
    assert not [each for kind in KINDS for each in of_tls(name, kind)]


@pytest.mark.promise("S5-125", "S6-159")
@pytest.mark.parametrize("name", [*JOB, "existing-secrets"])
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
@pytest.mark.parametrize("name", JOB)
def test_no_pod_mounts_the_key_of_the_ca(name: str) -> None:
    names = {each["metadata"]["name"] for each in of_tls(name, "Secret")}
    (authority,) = (each for each in names if each.endswith("-ca"))
    assert authority not in yaml.safe_dump(
        [pod.spec["volumes"] for pod in pods.of(chart_renders.of_set(name))]
    )


@pytest.mark.promise("S6-190")
@pytest.mark.parametrize("name", JOB)
def test_routers_alone_mount_the_voucher_key_that_the_job_made(name: str) -> None:
    (made,) = {
        cli._parser().parse_args(["certificates", *pod.main["args"]]).voucher_secret
        for pod in makers(name)
    }
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


@pytest.mark.parametrize("name", ["tls", "mesh"])
def test_without_the_job_and_without_a_secret_routers_sign_nothing(name: str) -> None:
    assert "voucher_key_file" not in settings(name, "router")
    volumes = pods.of_set(name)["router"].spec["volumes"]
    assert "voucher-key" not in [volume["name"] for volume in volumes]


def test_a_voucher_key_of_the_operator_s_is_used_instead_of_the_job_s() -> None:
    given = {"router": {"voucherKey": {"existingSecret": "mine", "key": "a.key"}}}
    (router,) = (
        pod for pod in pods.of(chart_renders.manifests(given)) if pod.component == "router"
    )
    (volume,) = (each for each in router.spec["volumes"] if each["name"] == "voucher-key")
    assert volume["secret"]["secretName"] == "mine"
    assert volume["secret"]["items"] == [{"key": "a.key", "path": "voucher.key"}]


@pytest.mark.promise("S5-127", "S6-159")
@pytest.mark.parametrize("name", JOB)
def test_the_role_of_the_job_names_its_three_secrets_and_nothing_else(name: str) -> None:
    names = sorted(each["metadata"]["name"] for each in of_tls(name, "Secret"))
    assert len(names) == 3
    assert rules(name) == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": names,
            "verbs": ["get", "update"],
        }
    ]
    (binding,) = of_tls(name, "RoleBinding")
    (account,) = of_tls(name, "ServiceAccount")
    assert [subject["name"] for subject in binding["subjects"]] == [account["metadata"]["name"]]
    assert {pod.spec["serviceAccountName"] for pod in makers(name)} == {account["metadata"]["name"]}


@pytest.mark.parametrize("name", JOB)
def test_the_secrets_are_made_empty_so_that_an_upgrade_keeps_what_the_job_wrote(name: str) -> None:
    for secret in of_tls(name, "Secret"):
        assert secret.keys() == {"apiVersion", "kind", "metadata", "type"}


@pytest.mark.parametrize("name", JOB)
def test_the_job_and_its_renewal_run_what_the_command_takes(name: str) -> None:
    """By the image of the chart, with the names that the Role allows and components ask for."""
    job, renewal = makers(name)
    assert {pod.owner.split("/")[0] for pod in (job, renewal)} == {"Job", "CronJob"}
    assert job.spec == renewal.spec
    assert job.main["command"] == ["tandem", "certificates"]
    assert job.main["image"] == pods.of_set(name)["router"].main["image"]
    arguments = cli._parser().parse_args([*job.main["command"][1:], *job.main["args"]])
    named = [*arguments.secrets, arguments.voucher_secret]
    assert sorted(named) == rules(name)[0]["resourceNames"]
    assert arguments.secrets[0].endswith("-ca")
    assert arguments.namespace == chart_renders.NAMESPACE
    for role in roles(name):
        assert arguments.peer_name == settings(name, role)["tls_peer_name"]


def test_the_renewal_comes_often_enough_for_the_shortest_life_that_is_taken() -> None:
    days = chart_renders.chart().values["tls"]["job"]
    assert days["schedule"].split()[2:] == ["*", "*", "*"]  # every day
    objects = chart_renders.manifests({"tls": {"job": {"certificateDays": 7}}})
    assert any("--days=7" in pod.main.get("args", ()) for pod in pods.of(objects))
    with pytest.raises(Exception, match="certificateDays"):
        chart_renders.manifests({"tls": {"job": {"certificateDays": 6}}})


@pytest.mark.parametrize("name", [name for name in JOB if by_name(name, "NetworkPolicy")])
def test_the_job_is_let_out_to_the_api_alone_and_nobody_in(name: str) -> None:
    """Also where the namespace denies all that no policy allows."""
    (policy,) = of_tls(name, "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["ingress"] == []
    assert policy["spec"]["egress"] == [{"ports": [{"port": 443}, {"port": 6443}]}]
    for pod in makers(name):
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod.labels.items()


def test_two_installations_bear_different_names_unless_told_otherwise() -> None:
    names = {settings(name, "router")["tls_peer_name"] for name in ("default", "restricted", "tls")}
    assert names == {"tandem.tandem", settings("restricted", "router")["tls_peer_name"]}
    assert settings("existing-secrets", "router")["tls_peer_name"] == "serving.example"


@pytest.mark.parametrize("name", ["*", "Tandem", "a..b", "a" * 201])
def test_a_peer_name_that_no_certificate_could_bear_is_refused(name: str) -> None:
    with pytest.raises(Exception, match="peerName"):
        chart_renders.manifests({"tls": {"peerName": name}})


def test_a_job_that_is_to_run_otherwise_is_another() -> None:
    jobs = [
        next(
            each["metadata"]["name"]
            for each in chart_renders.manifests({"tls": {"peerName": name}})
            if each["kind"] == "Job"
        )
        for name in ("one.example", "two.example")
    ]
    assert len(set(jobs)) == 2
