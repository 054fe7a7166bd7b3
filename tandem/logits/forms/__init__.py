"""Forms of answers that clients ask for: JSON Schema, regular expression, grammar, choice.

A client writes them, and compiling one can take any time, memory and stack. So their size is
checked first (`limits`, the frontend's and the worker's), then they are compiled in a process that
may be killed (`process`, run by `workshop`), and only what came out of that unharmed is used where
other requests live. docs/design/0014-forms.md says why.
"""
