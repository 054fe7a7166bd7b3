"""What a request's fields say against each other: one rule for all ways by which requests come.

`fields` is asked at each door, before anything waits or runs: it knows names and arguments.
`tokens` is asked by engines before they take a request: it knows the processors that were built,
and the model. What neither sees ends the request while it runs, with a ContradictionError: see
tandem/logits/rows.py.
"""
