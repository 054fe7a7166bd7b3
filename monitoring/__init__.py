"""Makes Tandem's dashboards, recording rules and alert rules from the components' own metrics.

    python -m monitoring            # write helm/tandem/dashboards and helm/tandem/rules
    python -m monitoring --check    # exit 1 where one of them is stale

A panel or a rule that names a metric or a label that no component has fails the generation, and a
panel is described by the help text of its metrics: so neither can drift from the code.
"""
