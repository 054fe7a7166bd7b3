"""Hooks that need no code: a worker's settings name them."""

READY: dict[str, str] = {
    "banned_phrases": "tandem.hooks.ready.phrases:BannedPhrases",
    "json_only": "tandem.hooks.ready.json_only:JsonOnly",
    "max_output": "tandem.hooks.ready.max_output:MaxOutput",
    "patterns": "tandem.hooks.ready.patterns:Patterns",
    "pii": "tandem.hooks.ready.pii:Pii",
    "secrets": "tandem.hooks.ready.secrets:Secrets",
}
"""Short name -> import path."""
