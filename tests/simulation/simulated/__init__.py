"""A whole deployment in virtual time: the real code of every process over a scripted engine."""
