"""An executor's own engines: a router and the workers of both phases, composed for one program."""
