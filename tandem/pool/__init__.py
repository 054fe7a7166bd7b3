"""Processes that may be killed: work that could take any time or memory, and code of others, is
done in them, so that a fault there costs only the requests that the process holds.

`process.ChildProcess` is one process, from its start to its end. `pool.Pool` is several that answer
one order at a time each: started when they are needed, bounded in time and memory, replaced when
they are lost, and shared out fairly (`turns`). `kept.Keeper` is several that are told
things at any time: all start together, are killed when they hang, and are replaced when they are
lost. `child` is the processes' own side, and `frames` how messages travel. What is said is the
users' business.
"""
