"""Clients' keys, as other components know them."""

MAX_NAME = 64
"""Characters of a key's name, by which other components know its requests."""
MAX_WEIGHT = 1_000
