"""The audit log: which hook or classifier decided what, when, about which request. JSON lines."""

from tandem.hooks.audit.line import Decided
from tandem.hooks.audit.log import AuditLog
from tandem.hooks.audit.settings import AuditSettings, parse

__all__ = ["AuditLog", "AuditSettings", "Decided", "parse"]
