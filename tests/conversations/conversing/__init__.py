"""Random conversations, read by a frontend's own code with the store of prefixes and without."""
