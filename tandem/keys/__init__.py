"""Clients' keys: what each is called and allowed, the file that holds their hashes, and minutes.

A key is shown once, when it is made; what is kept of it is its SHA-256. Nobody can guess a key that
was made here (256 random bits), so that a plain hash of it tells nothing. What a limit means for a
request is the frontend's to say.
"""

MAX_NAME = 64
"""Characters of a key's name, by which other components know its requests."""
OTHERS = "_other"
"""The series of the keys that have none of their own; no key can be called so."""
MAX_WEIGHT = 1_000
