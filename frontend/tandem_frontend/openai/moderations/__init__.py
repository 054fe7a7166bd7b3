"""`POST /v1/moderations`: texts of clients, judged by classifiers in a process of their own.

reading/moderations.py is the shape of requests; `endpoint` serves calls. `judge` is the frontend's
side of the process, `process` the program that it runs, `wire` what the two say to each other, and
`categories` what an answer makes of a judgement.
"""
