"""`tandem certificates`: what is issued, kept and renewed, and where it lies."""

from __future__ import annotations

import base64
import json
import re
import ssl
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from local_servers import serving

from tandem import certificates
from tandem.cli import main
from tandem.wire.tls import ROLES
from tandem_router import vouchers
from tandem_tools.certificate_issuing import (
    AUTHORITIES_FILE,
    CA_FILE,
    SETTLE,
    VOUCHER_FILE,
    Holding,
    Issued,
    Plan,
    issue,
)

DAY = timedelta(days=1)
NOW = datetime(2026, 11, 1, tzinfo=UTC)
PLAN = Plan(peer_name="tandem", lifetime=30 * DAY, authority_lifetime=300 * DAY)
NOTHING = Holding({}, {})
CERTIFICATE_FILES = {CA_FILE, *(f"{role}.{end}" for role in ROLES for end in ("crt", "key"))}


def read(content: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(content)


def private_keys(content: bytes) -> list[bytes]:
    """By their whole heading: three letters stand somewhere in a certificate now and then."""
    return re.findall(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]+-----END", content)


def names(content: bytes) -> list[str]:
    value = read(content).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return value.get_values_for_type(x509.DNSName)


def trusts(bundle: bytes, cert: bytes, when: datetime) -> bool:
    """Whether one of a bundle's CAs, in its time, signed a certificate that is in its own."""
    leaf = read(cert)
    for authority in x509.load_pem_x509_certificates(bundle):
        try:
            leaf.verify_directly_issued_by(authority)
        except Exception:  # noqa: BLE001  # whatever it says, it is not the one
            continue
        return all(
            each.not_valid_before_utc <= when < each.not_valid_after_utc
            for each in (leaf, authority)
        )
    return False


def left(content: bytes, when: datetime) -> float:
    """The share of a certificate's life that is left."""
    cert = read(content)
    life = cert.not_valid_after_utc - cert.not_valid_before_utc
    return (cert.not_valid_after_utc - when) / life


# --- what is issued -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first() -> Issued:
    return issue(NOTHING, PLAN, NOW)


def test_the_first_run_makes_a_ca_and_a_certificate_for_each_role(first: Issued) -> None:
    assert set(first.holding.authorities) == {AUTHORITIES_FILE}
    files = first.holding.certificates
    assert set(files) == CERTIFICATE_FILES
    for role in ROLES:
        assert names(files[f"{role}.crt"]) == [f"{role}.tandem"]
        assert trusts(files[CA_FILE], files[f"{role}.crt"], NOW)
    keys = {files[f"{role}.key"] for role in ROLES}
    assert len(keys) == len(ROLES)
    assert len(first.changes) == 1 + len(ROLES)


@pytest.mark.promise("S6-159")
def test_the_key_of_the_ca_is_not_among_what_components_get(first: Issued) -> None:
    (key,) = private_keys(first.holding.authorities[AUTHORITIES_FILE])
    certificates = first.holding.certificates
    assert all(key not in private_keys(content) for content in certificates.values())
    assert not private_keys(certificates[CA_FILE])


@pytest.mark.promise("S6-158")
def test_a_role_cannot_sign_for_another(first: Issued) -> None:
    for role in ROLES:
        extensions = read(first.holding.certificates[f"{role}.crt"]).extensions
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    authority = read(first.holding.certificates[CA_FILE])
    assert (
        authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    )


# --- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [timedelta(0), timedelta(minutes=1), 19 * DAY])
def test_what_is_good_is_kept_as_it_is(first: Issued, later: timedelta) -> None:
    again = issue(first.holding, PLAN, NOW + later)
    assert again.changes == ()
    assert again.holding == first.holding


def test_a_certificate_is_renewed_with_a_third_of_its_life_left(first: Issued) -> None:
    again = issue(first.holding, PLAN, NOW + 20 * DAY + timedelta(hours=1))
    assert [change.split(":")[0] for change in again.changes] == list(ROLES)
    for role in ROLES:
        old, new = (each.holding.certificates[f"{role}.crt"] for each in (first, again))
        assert read(new).not_valid_after_utc - read(old).not_valid_after_utc > 20 * DAY
    assert again.holding.authorities == first.holding.authorities
    assert again.holding.certificates[CA_FILE] == first.holding.certificates[CA_FILE]


@pytest.mark.parametrize("file", sorted(CERTIFICATE_FILES))
@pytest.mark.parametrize(
    "damage",
    [None, b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"\xff"],
)
def test_what_is_missing_or_damaged_is_made_anew_and_nothing_else(
    first: Issued, file: str, damage: bytes | None
) -> None:
    files = {name: content for name, content in first.holding.certificates.items() if name != file}
    if damage is not None:
        files[file] = damage
    again = issue(Holding(first.holding.authorities, files), PLAN, NOW)
    assert len(again.changes) == 1
    changed = {
        name
        for name, content in again.holding.certificates.items()
        if content != first.holding.certificates[name]
    }
    stem = file.partition(".")[0]
    assert changed == (set() if file == CA_FILE else {f"{stem}.crt", f"{stem}.key"})


def test_a_key_of_another_role_is_not_taken_for_its_own(first: Issued) -> None:
    files = dict(first.holding.certificates)
    files["router.key"] = files["decode.key"]
    again = issue(Holding(first.holding.authorities, files), PLAN, NOW)
    assert [change.split(":")[0] for change in again.changes] == ["router"]


def test_a_certificate_of_another_role_is_not_kept_in_its_place(first: Issued) -> None:
    files = dict(first.holding.certificates)
    for end in ("crt", "key"):
        files[f"decode.{end}"] = files[f"frontend.{end}"]
    again = issue(Holding(first.holding.authorities, files), PLAN, NOW)
    assert again.changes == ("decode: new certificate: it has another name",)


def test_another_name_of_the_installation_is_taken_over(first: Issued) -> None:
    other = Plan(peer_name="x.y", lifetime=PLAN.lifetime, authority_lifetime=300 * DAY)
    again = issue(first.holding, other, NOW)
    assert names(again.holding.certificates["decode.crt"]) == ["decode.x.y"]
    assert again.holding.authorities == first.holding.authorities


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"-----BEGIN X-----\nA\n-----END X-----\n"])
def test_a_ca_that_is_lost_is_replaced_with_all_that_it_signed(
    first: Issued, content: bytes
) -> None:
    held = Holding({AUTHORITIES_FILE: content}, first.holding.certificates)
    again = issue(held, PLAN, NOW)
    assert len(again.changes) == 1 + len(ROLES)
    for role in ROLES:
        files = again.holding.certificates
        assert trusts(files[CA_FILE], files[f"{role}.crt"], NOW)
        assert not trusts(first.holding.certificates[CA_FILE], files[f"{role}.crt"], NOW)


def test_a_certificate_of_a_strangers_ca_is_not_kept(first: Issued) -> None:
    stranger = issue(NOTHING, PLAN, NOW)
    held = Holding(first.holding.authorities, stranger.holding.certificates)
    again = issue(held, PLAN, NOW)
    for role in ROLES:
        assert trusts(
            first.holding.certificates[CA_FILE], again.holding.certificates[f"{role}.crt"], NOW
        )


# --- renewal over years ---------------------------------------------------------------------------


def test_run_every_day_no_component_ever_meets_a_certificate_that_it_does_not_trust() -> None:
    """Components may use what they were given a day ago, and two of them different days' files."""
    held = NOTHING
    days: list[Holding] = []
    bundles = set()
    for day in range(700):
        now = NOW + day * DAY
        held = issue(held, PLAN, now).holding
        days = [*days[-1:], held]
        bundles.add(held.certificates[CA_FILE])
        for trusting in days:
            for showing in days:
                bundle, shown = trusting.certificates[CA_FILE], showing.certificates["router.crt"]
                assert trusts(bundle, shown, now), day
        assert left(held.certificates["router.crt"], now) > 0.3
        newest = x509.load_pem_x509_certificates(held.certificates[CA_FILE])[0]
        assert left(newest.public_bytes(Encoding.PEM), now) > 0.3
    authorities = {each for bundle in bundles for each in x509.load_pem_x509_certificates(bundle)}
    assert len(authorities) > 3  # it was renewed, and more than once
    assert len(x509.load_pem_x509_certificates(held.certificates[CA_FILE])) == 1


def test_a_new_ca_signs_only_when_everybody_knows_it_and_the_old_one_is_then_forgotten(
    first: Issued,
) -> None:
    begin = NOW + 201 * DAY
    rolled = issue(first.holding, PLAN, begin)
    assert rolled.changes[0].startswith("new CA: it ends on")
    old, bundle = first.holding.certificates[CA_FILE], rolled.holding.certificates[CA_FILE]
    assert len(x509.load_pem_x509_certificates(bundle)) == 2
    assert trusts(old, rolled.holding.certificates["decode.crt"], begin)
    soon = issue(rolled.holding, PLAN, begin + SETTLE / 2)
    assert soon.changes == ()
    signed = issue(soon.holding, PLAN, begin + SETTLE)
    assert len(signed.changes) == len(ROLES)
    assert not trusts(old, signed.holding.certificates["decode.crt"], begin + SETTLE)
    # Run twice at once, the old one is still trusted: peers have its certificates yet.
    assert issue(signed.holding, PLAN, begin + SETTLE).changes == ()
    over = issue(signed.holding, PLAN, begin + 2 * SETTLE)
    assert over.changes[0] == "the CA before it is not trusted any more"
    assert len(x509.load_pem_x509_certificates(over.holding.certificates[CA_FILE])) == 1


@pytest.mark.parametrize("days", [31, 250, 299, 301, 5000])
def test_after_a_long_pause_all_is_good_again(first: Issued, days: int) -> None:
    now = NOW + days * DAY
    again = issue(first.holding, PLAN, now)
    for role in ROLES:
        files = again.holding.certificates
        assert trusts(files[CA_FILE], files[f"{role}.crt"], now)


def test_a_clock_that_was_ahead_leaves_nothing_that_is_not_valid_yet(first: Issued) -> None:
    ahead = issue(NOTHING, PLAN, NOW + 10 * DAY)
    again = issue(ahead.holding, PLAN, NOW)
    files = again.holding.certificates
    assert all(read(files[f"{role}.crt"]).not_valid_before_utc <= NOW for role in ROLES)
    assert issue(again.holding, PLAN, NOW).changes == ()


# --- the voucher key ------------------------------------------------------------------------------


@pytest.mark.promise("S6-190")
@pytest.mark.parametrize("days", [0, 100, 2000])
def test_the_voucher_key_outlives_every_certificate(first: Issued, days: int) -> None:
    """A router refuses what another key signed."""
    held = Holding(first.holding.authorities, first.holding.certificates, {})
    made = issue(held, PLAN, NOW).holding
    again = issue(made, PLAN, NOW + days * DAY)
    assert again.holding.voucher == made.voucher
    assert not [change for change in again.changes if VOUCHER_FILE in change]


@pytest.mark.parametrize("content", [{}, {VOUCHER_FILE: b""}, {VOUCHER_FILE: b"short" + 40 * b" "}])
def test_a_voucher_key_that_no_router_takes_is_made_anew(
    first: Issued, content: dict[str, bytes]
) -> None:
    held = Holding(first.holding.authorities, first.holding.certificates, content)
    again, other = issue(held, PLAN, NOW), issue(held, PLAN, NOW)
    assert len(again.changes) == 1
    assert again.holding.certificates == first.holding.certificates
    assert again.holding.voucher is not None
    assert again.holding.voucher != other.holding.voucher, "it is random"
    secrets = {**again.holding.authorities, **again.holding.certificates}
    assert again.holding.voucher[VOUCHER_FILE] not in secrets.values()


def test_a_key_of_the_operator_s_is_kept_as_it_is(first: Issued) -> None:
    held = Holding(first.holding.authorities, first.holding.certificates, {VOUCHER_FILE: b"x" * 32})
    assert issue(held, PLAN, NOW).holding == held


def test_routers_take_the_voucher_key_that_is_made(tmp_path: Path) -> None:
    assert main(["certificates", "--to", str(tmp_path)]) == 0
    assert vouchers.load(str(tmp_path / VOUCHER_FILE)) is not None


# --- in a folder ----------------------------------------------------------------------------------


def test_a_folder_is_filled_once_and_its_keys_are_the_owners_alone(tmp_path: Path) -> None:
    command = ["certificates", "--to", str(tmp_path / "made"), "--peer-name", "here"]
    assert main(command) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    assert set(before) == CERTIFICATE_FILES | {AUTHORITIES_FILE, VOUCHER_FILE}
    assert main(command) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()} == before
    for path in (tmp_path / "made").iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0 or path.suffix == ".crt"
    assert names(before["prefill.crt"]) == ["prefill.here"]
    # What components themselves make of them.
    for role in ROLES:
        cert, key = (str(tmp_path / "made" / f"{role}.{end}") for end in ("crt", "key"))
        files = certificates.CertificateFiles(cert=cert, key=key, ca=str(tmp_path / "made/ca.crt"))
        assert isinstance(files.current().context, ssl.SSLContext)


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["certificates", "--to", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--to, or --secrets"),
        (["--to", "a", "--secrets", "b", "c"], "--to, or --secrets"),
        (["--secrets", "b", "c"], "--secrets needs --namespace"),
        (["--to", "a", "--voucher-secret", "b"], "--voucher-secret needs --secrets"),
        (["--to", "a", "--owner", "b"], "--owner needs --secrets"),
        (["--to", "a", "--days", "90", "--ca-days", "30"], "--days must not be above --ca-days"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certificates", *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["", "*", "*.tandem", "a..b", "ä", "-a", "a" * 64, "a." * 100 + "a"]
)
def test_a_name_that_is_no_dns_name_is_refused(name: str) -> None:
    with pytest.raises(SystemExit):
        main(["certificates", "--to", "a", f"--peer-name={name}"])


@pytest.mark.parametrize("days", ["0", "-1", "36501", "x"])
def test_a_life_that_is_none_is_refused(days: str) -> None:
    with pytest.raises(SystemExit):
        main(["certificates", "--to", "a", f"--days={days}"])


# --- in Secrets -----------------------------------------------------------------------------------


VOUCHER_SECRET = "the-voucher"


class FakeApi(ThreadingHTTPServer):
    """GET, PUT and POST of Secrets, with their versions, and GET of one ServiceAccount."""

    daemon_threads = True
    SECRETS = ("the-ca", "the-certificates")
    ACCOUNT = "the-account"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        names = (*self.SECRETS, VOUCHER_SECRET)
        self.secrets: dict[str, dict[str, Any]] = {name: _secret(name) for name in names}
        self.calls: list[tuple[str, str]] = []
        self.refuse: int = 0
        """A status for every call, where it is set."""
        self.interfere = 0
        """How many more PUTs meet a Secret that another has written since it was read."""
        self.between: Callable[[dict[str, Any]], object] | None = None
        """What another writes before the next PUT."""
        self.between_posts: Callable[[FakeApi], object] | None = None
        """What another makes before the next POST."""


def _secret(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "resourceVersion": "1", "labels": {"a": "b"}}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata}


class _Handler(BaseHTTPRequestHandler):
    server: FakeApi

    def do_GET(self) -> None:
        self._serve("GET")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def do_POST(self) -> None:
        api, made = self.server, json.loads(self._body())
        api.calls.append(("POST", self.path))
        name = made["metadata"]["name"]
        if api.between_posts is not None:
            api.between_posts(api)
            api.between_posts = None
        if api.refuse or name in api.secrets:
            return self._answer(api.refuse or 409, {"kind": "Status"})
        made["metadata"]["resourceVersion"] = "1"
        api.secrets[name] = made
        return self._answer(201, made)

    def _serve(self, verb: str) -> None:
        body = self._body()
        api, prefix = self.server, "/api/v1/namespaces/ns/secrets/"
        name = self.path.removeprefix(prefix)
        api.calls.append((verb, self.path))
        if self.path == f"/api/v1/namespaces/ns/serviceaccounts/{api.ACCOUNT}":
            return self._answer(200, {"metadata": {"name": api.ACCOUNT, "uid": "its-uid"}})
        held = api.secrets.get(name)
        if api.refuse or held is None:
            return self._answer(api.refuse or 404, {"kind": "Status"})
        if verb == "PUT":
            if api.interfere:
                api.interfere -= 1
                _count_up(held)
            if api.between is not None:
                api.between(held)
                api.between = None
                _count_up(held)
            given = json.loads(body)
            if given["metadata"]["resourceVersion"] != held["metadata"]["resourceVersion"]:
                return self._answer(409, {"kind": "Status"})
            api.secrets[name] = held = given
            _count_up(held)
        return self._answer(200, held)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _count_up(secret: dict[str, Any]) -> None:
    metadata = secret["metadata"]
    metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    api = FakeApi()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig")
    )
    with serving(api):
        yield api


IN_SECRETS = ["certificates", "--secrets", *FakeApi.SECRETS, "--namespace", "ns"]


def content(secret: dict[str, Any]) -> dict[str, bytes]:
    return {name: base64.b64decode(each) for name, each in secret.get("data", {}).items()}


def test_two_secrets_are_filled_once_by_name_and_keep_what_else_they_say(api: FakeApi) -> None:
    assert main(IN_SECRETS) == 0
    allowed = {f"/api/v1/namespaces/ns/secrets/{name}" for name in FakeApi.SECRETS}
    assert {path for _, path in api.calls} == allowed
    assert [verb for verb, _ in api.calls] == ["GET", "GET", "PUT", "PUT"]
    authorities, certificates = (content(api.secrets[name]) for name in FakeApi.SECRETS)
    assert set(authorities) == {AUTHORITIES_FILE}
    assert set(certificates) == CERTIFICATE_FILES
    assert api.secrets["the-ca"]["metadata"]["labels"] == {"a": "b"}
    before = json.dumps(api.secrets)
    assert main(IN_SECRETS) == 0
    assert json.dumps(api.secrets) == before


@pytest.mark.promise("S6-190")
def test_the_voucher_key_is_in_a_secret_of_its_own_where_one_is_named(api: FakeApi) -> None:
    assert main(IN_SECRETS) == 0
    assert content(api.secrets[VOUCHER_SECRET]) == {}
    assert main([*IN_SECRETS, "--voucher-secret", VOUCHER_SECRET]) == 0
    made = content(api.secrets[VOUCHER_SECRET])
    assert set(made) == {VOUCHER_FILE}
    assert all(VOUCHER_FILE not in content(api.secrets[name]) for name in FakeApi.SECRETS)
    assert main([*IN_SECRETS, "--voucher-secret", VOUCHER_SECRET]) == 0
    assert content(api.secrets[VOUCHER_SECRET]) == made


@pytest.mark.promise("S6-190")
def test_of_two_runs_at_once_the_second_keeps_the_voucher_key_of_the_first(api: FakeApi) -> None:
    assert main(IN_SECRETS) == 0
    api.between = lambda held: held.update(
        data={VOUCHER_FILE: base64.b64encode(b"f" * 32).decode()}
    )
    assert main([*IN_SECRETS, "--voucher-secret", VOUCHER_SECRET]) == 0
    assert content(api.secrets[VOUCHER_SECRET]) == {VOUCHER_FILE: b"f" * 32}


def test_what_another_wrote_meanwhile_is_read_first(api: FakeApi) -> None:
    api.interfere = 2
    assert main(IN_SECRETS) == 0
    files = content(api.secrets["the-certificates"])
    assert trusts(files[CA_FILE], files["decode.crt"], datetime.now(UTC))


def test_it_gives_up_on_others_who_write_all_the_time(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.interfere = 100
    assert main(IN_SECRETS) == 1
    assert "another process keeps changing" in capsys.readouterr().out


@pytest.mark.promise("S6-500")
@pytest.mark.parametrize("gone", [(0,), (1,), (0, 1)])
def test_a_secret_that_is_gone_is_made_again_and_goes_with_its_owner(
    api: FakeApi, gone: tuple[int, ...]
) -> None:
    """A CA that is there is kept, whatever else was lost."""
    assert main(IN_SECRETS) == 0
    before = content(api.secrets["the-ca"])
    for each in gone:
        del api.secrets[FakeApi.SECRETS[each]]
    assert main([*IN_SECRETS, "--owner", FakeApi.ACCOUNT]) == 0
    files = content(api.secrets["the-certificates"])
    assert set(files) == CERTIFICATE_FILES
    assert trusts(files[CA_FILE], files["decode.crt"], datetime.now(UTC))
    assert (content(api.secrets["the-ca"]) == before) is (0 not in gone)
    for each in gone:
        made = api.secrets[FakeApi.SECRETS[each]]
        assert made["type"] == "Opaque"
        (owner,) = made["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("ServiceAccount", "its-uid")
        # By this label controllers find what they applied, to prune it.
        assert "app.kubernetes.io/instance" not in made["metadata"]["labels"]


@pytest.mark.promise("S6-500")
def test_of_two_that_make_the_ca_at_once_the_second_takes_that_of_the_first(
    api: FakeApi,
) -> None:
    assert main(IN_SECRETS) == 0
    first = dict(api.secrets)
    for name in FakeApi.SECRETS:
        del api.secrets[name]
    api.between_posts = lambda api: api.secrets.update(first)
    assert main(IN_SECRETS) == 0
    assert {name: content(api.secrets[name]) for name in FakeApi.SECRETS} == {
        name: content(first[name]) for name in FakeApi.SECRETS
    }


@pytest.mark.parametrize(
    ("status", "hint"), [(403, "Role"), (404, "namespace"), (500, "status 500")]
)
def test_a_refusal_says_what_to_do(
    api: FakeApi, status: int, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.refuse = status
    assert main(IN_SECRETS) == 1
    said = capsys.readouterr().out
    assert "ns/the-ca" in said
    assert hint in said


def test_without_a_cluster_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none")
    )
    assert main(IN_SECRETS) == 2
    assert "no cluster is known" in capsys.readouterr().err
