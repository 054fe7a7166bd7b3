"""Classifiers that ask a guardrail service over HTTP.

Each is one vendor's contract: what is sent, and what the answer means. All go through
`http.GuardrailClient`, which bounds time, size and concurrency and fails closed.
"""
