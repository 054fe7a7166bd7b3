"""The operator's code: how it is found, built, called, bounded in time and ended."""
