"""Text: a model's tokenizer, token ids to text a few at a time, and stop strings.

The frontend and the workers use the same code, so that log-probabilities, hooks and answers show
the same text for the same tokens.
"""
