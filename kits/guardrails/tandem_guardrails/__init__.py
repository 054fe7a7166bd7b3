"""Hooks that need no code, since a worker's settings name them, and classifiers that ask a service.

They use the public contract of `tandem.hooks` and nothing else of it.
"""
