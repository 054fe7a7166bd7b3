"""`tandem certificates`: a CA and a certificate for each role, made where they lack, kept while
they are good, and renewed in time; and the routers' voucher key, made once.

It may run again, and twice at once. With `--keep` it goes on looking, as the chart runs it.
"""

from __future__ import annotations

import argparse
import re
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tandem import logs
from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.errors import ConfigError, StartError

if TYPE_CHECKING:
    from tandem_tools.certificate_issuing import Plan
    from tandem_tools.certificate_stores import CertificateFolder, CertificateSecrets

    Store = CertificateFolder | CertificateSecrets

ATTEMPTS = 5
"""When others write at the same time."""
MOST_DAYS = 36500
MOST_NAME = 200
"""A DNS name has at most 253 characters, a role and a dot among them."""
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add("--to DIR", Path, help="Keep the certificates in this folder.")
    add(
        "--secrets",
        nargs=2,
        metavar=("CA", "CERTIFICATES"),
        help="Keep the certificates in these two Secrets, which are made if missing.",
    )
    add(
        "--voucher-secret NAME",
        default="",
        help="Keep the routers' voucher key in this Secret. A folder always holds it.",
    )
    add(
        "--owner ACCOUNT",
        default="",
        help="ServiceAccount with which Kubernetes deletes Secrets made here; without one they"
        " stay.",
    )
    add("--namespace", default="", help="Of the Secrets.")
    add(
        "--peer-name NAME",
        _peer_name,
        default="tandem",
        help="The components' setting tls_peer_name; roles are names below it. [%(default)s]",
    )
    add("--days", _days, default=90, help="Days for which a certificate is valid. [%(default)s]")
    add("--ca-days", _days, default=3650, help="Days for which the CA is valid. [%(default)s]")
    add(
        "--keep",
        action="store_true",
        help="Go on: check the certificates every ten seconds, until stopped.",
    )
    add(
        "--metrics-listen ADDRESS",
        default="127.0.0.1:7401",
        help="With --keep: address of metrics and probes. [%(default)s]",
    )
    add(
        "--log-format",
        choices=get_args(logs.Format),
        default="console",
        help="With --keep: format of log lines. [%(default)s]",
    )


def certificates(arguments: argparse.Namespace, console: Console) -> int:
    """Raises StartError for arguments that do not fit, and where a library is not installed."""
    if (arguments.to is None) is (arguments.secrets is None):
        raise ConfigError("say where to keep the certificates: --to, or --secrets")
    if arguments.voucher_secret and not arguments.secrets:
        raise ConfigError("--voucher-secret needs --secrets")
    if arguments.owner and not arguments.secrets:
        raise ConfigError("--owner needs --secrets")
    if arguments.secrets and not arguments.namespace:
        raise ConfigError("--secrets needs --namespace")
    if arguments.keep and arguments.json:
        raise ConfigError("--json is for a command that ends: leave out --keep")
    if arguments.days > arguments.ca_days:
        raise ConfigError("--days must not be above --ca-days")
    try:
        from tandem_tools import certificate_issuing, certificate_stores
    except ImportError as error:
        raise StartError(
            "making certificates needs: pip install 'tandem-serving[certificates]'"
        ) from error
    plan = certificate_issuing.Plan(
        peer_name=arguments.peer_name,
        lifetime=timedelta(days=arguments.days),
        authority_lifetime=timedelta(days=arguments.ca_days),
    )
    store: Store
    if arguments.to is not None:
        store = certificate_stores.CertificateFolder(arguments.to)
    else:
        authorities, issued = arguments.secrets
        store = certificate_stores.CertificateSecrets(
            namespace=arguments.namespace,
            authorities=authorities,
            certificates=issued,
            voucher=arguments.voucher_secret,
            owner=arguments.owner,
        )
    if arguments.keep:
        from tandem_tools import certificate_keeping

        return certificate_keeping.keep(
            partial(renew, store, plan),
            metrics_listen=arguments.metrics_listen,
            log_format=arguments.log_format,
        )
    try:
        changes = renew(store, plan)
    except certificate_stores.StoreError as error:
        console.failed(str(error))
        return 1
    console.result({"changes": changes})
    for change in changes:
        console.line(change)
    console.done("certificates are kept" if changes else "every certificate is good")
    return 0


def renew(store: Store, plan: Plan) -> tuple[str, ...]:
    """What had to be made, and why; nothing: all is good. Raises StoreError."""
    from tandem_tools import certificate_issuing, certificate_stores

    for _ in range(ATTEMPTS):
        issued = certificate_issuing.issue(store.read(), plan)
        if not issued.changes or store.write(issued.holding):
            return issued.changes
    raise certificate_stores.StoreError(
        "another process keeps changing the certificates: run the command again"
    )


def _peer_name(text: str) -> str:
    if not _DNS_NAME.fullmatch(text) or len(text) > MOST_NAME:
        raise argparse.ArgumentTypeError(f"a DNS name, not {text!r}")
    return text


def _days(text: str) -> int:
    days = int(text)
    if not 1 <= days <= MOST_DAYS:
        raise argparse.ArgumentTypeError(f"from 1 to {MOST_DAYS} days, not {days}")
    return days


COMMAND = Command(add_arguments, certificates, example="tandem certificates --to certificates")
