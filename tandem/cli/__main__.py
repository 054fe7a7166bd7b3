"""`python -m tandem.cli`: the `tandem` command."""

from tandem import component

raise SystemExit(component.tandem())
