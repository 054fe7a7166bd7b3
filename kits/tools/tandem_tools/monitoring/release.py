"""What rules say of the release that they watch: the placeholders of helm/tandem/rules, and what
fills them. The chart fills the same from its values.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from tandem.errors import ConfigError

RUNBOOKS = "https://github.com/tandem-serving/tandem/blob/main/docs/runbooks"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,252}")
_URL = re.compile(r"https?://[^\s'\"\\]{1,2000}")


@dataclass(slots=True, frozen=True, kw_only=True)
class MonitoredRelease:
    """A release. Its defaults are the chart's."""

    namespace: str = "default"
    job: str = "tandem"
    """The label `job` of its targets; on Kubernetes the name of the release."""
    pods: str = "tandem"
    """What the names of the release's pods begin with, where kube-state-metrics tells of pods."""
    start_seconds: int = 1800
    """How long a worker may take to start: the longest of the phases."""
    runbook_url: str = RUNBOOKS
    availability_objective: float = 0.999
    ttft_objective: float = 0.99
    itl_objective: float = 0.99

    def __post_init__(self) -> None:
        """Raises ConfigError: a value goes into rules as it is, so it may end nothing in them."""
        for name in ("namespace", "job", "pods"):
            if not _LABEL.fullmatch(getattr(self, name)):
                raise ConfigError(
                    f"--{name} {getattr(self, name)!r}: 1 to 253 letters, digits, and . _ : - "
                    "after the first"
                )
        if not _URL.fullmatch(self.runbook_url):
            raise ConfigError(f"--runbook-url {self.runbook_url!r} is no http address")


def placeholder(name: str) -> str:
    """What stands in rules for a field of MonitoredRelease. Raises KeyError."""
    return f"@{MonitoredRelease.__dataclass_fields__[name].name.upper()}@"


def fill(text: str, release: MonitoredRelease | None = None) -> str:
    """Rules of a release; without one, of the chart's defaults."""
    for name, value in asdict(release or MonitoredRelease()).items():
        text = text.replace(placeholder(name), str(value))
    return text
