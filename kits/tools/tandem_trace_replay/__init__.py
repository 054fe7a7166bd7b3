"""Traces through the router's real cores and policies, in virtual time: `tandem replay`.

`tandem.cli` finds this package by its name, because it lies above the router and tandem lies below
it: see docs/architecture.md.
"""
