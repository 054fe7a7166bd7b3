"""`secrets`: common credentials, by their published shapes.

The shapes follow the rules of gitleaks (https://github.com/gitleaks/gitleaks, config/gitleaks.toml,
MIT licence), loosened where a token may be longer than today's, so that no rest of one is shown;
the entropy tests of gitleaks are not made. A kind matches by shape: the examples that vendors print
in their manuals match too.
"""

from __future__ import annotations

from tandem_guardrails import arguments
from tandem_guardrails.pattern_filter import Pattern, PatternFilter
from tandem_guardrails.patterns import action_of

MAX_MATCH = 8192
"""Characters of the longest: a PEM block of a 4096-bit RSA key has 3300."""

KINDS: dict[str, str] = {
    "anthropic": r"\bsk-ant-[a-z]{3,8}\d{2}-[A-Za-z0-9_-]{80,200}",
    "aws_access_key": r"\b(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
    "aws_bedrock": r"\bABSK[A-Za-z0-9+/]{109,300}={0,2}|bedrock-api-key-[A-Za-z0-9+/=_-]{20,}",
    "github": r"\b(?:gh[pousr]_[0-9A-Za-z]{36,255}|github_pat_\w{82,255})",
    "gitlab": r"\bgl(?:pat|dt|ptt|rt|cbt)-[\w-]{20,300}(?:\.[0-9a-z]{2}\.?[0-9a-z]{7})?",
    "google_api_key": r"\bAIza[\w-]{35,64}",
    "huggingface": r"\b(?:hf|api_org)_[A-Za-z0-9]{34,64}",
    "jwt": r"\bey[A-Za-z0-9_-]{17,}\.ey[A-Za-z0-9_-]{17,}\.(?:[A-Za-z0-9_-]{10,}={0,2})?",
    "npm": r"\bnpm_[A-Za-z0-9]{36,64}",
    "openai": (
        r"\bsk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,250}"
        r"|\bsk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}"
    ),
    # Without its last line too: from the first to two hyphens, or the end of the answer.
    "private_key": (
        r"-----BEGIN[ A-Z0-9]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-[^-])*"
        r"(?:-----END[ A-Z0-9]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
    ),
    "pypi": r"\bpypi-AgEIcHlwaS5vcmc[\w-]{50,1000}",
    "sendgrid": r"\bSG\.[A-Za-z0-9=_-]{16,40}\.[A-Za-z0-9=_-]{16,80}",
    "slack": (
        r"\bxox[a-z](?:\.xox[bp])?-[0-9A-Za-z-]{10,250}|\bxapp-\d-[0-9A-Za-z-]{10,250}"
        r"|\bhooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{43,64}"
    ),
    "stripe": r"\b(?:sk|rk)_(?:test|live|prod)_[A-Za-z0-9]{10,200}|\bwhsec_[A-Za-z0-9]{32,64}",
}


class Secrets(PatternFilter):
    """Takes credentials out, or ends the answer at one; the stop_reason is its kind."""

    resumable = True

    def __init__(
        self,
        *,
        kinds: list[str] | None = None,
        action: str = "redact",
        replacement: str = "[secret]",
    ) -> None:
        """Without `kinds` all of KINDS. Raises LoadError."""
        super().__init__(
            [
                Pattern(
                    name=kind,
                    pattern=KINDS[kind],
                    action=action_of("action", action),
                    replacement=arguments.text("replacement", replacement, empty=True),
                )
                for kind in arguments.some_of("kinds", kinds, KINDS)
            ],
            max_match=MAX_MATCH,
        )
