"""Deliberate bugs, and how they are tried: see CONTRIBUTING.md."""
