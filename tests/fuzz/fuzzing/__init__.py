"""Fuzzing: inputs made from valid ones, what they are given to, and what must never come of it."""
