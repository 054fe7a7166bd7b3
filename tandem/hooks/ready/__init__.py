"""Hooks that need no code: a worker's settings name them."""

READY: dict[str, str] = {}
"""Short name -> import path."""
