"""An executor's own engines: a router and the workers of both phases, composed for one program.

`tandem.executor` finds this package by its name, because it lies above the components and tandem
lies below them: see docs/architecture.md.
"""
