"""Classifiers: the operator's code that judges an answer once it is complete, or window by window.

`contract` is what a classifier's author needs, `settings` what an operator sets. A worker builds
one `ClassifierSet` (runner of all), gives each sequence a `SequenceGuard` (what may be shown when),
and runs judgements through `Judgements` (tasks with an owner).
"""
