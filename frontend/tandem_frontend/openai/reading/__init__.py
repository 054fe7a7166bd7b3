"""What is made of a body before it is sent or answered: decoded, checked, templated, tokenised.

That takes time and memory in proportion to the body, and the frontend has one event loop. So a
small body is read on it, and a larger one in a process (`process`, kept by `readers`) that may be
killed. Both do the same (`reader`).
"""
