"""What a session's worker does in place of a function: it serves calls, each in a process forked from it.

    signs, warming, call ← serve

Runs in the environment's own Python. To everybody else a session is a job like any other: its supervisor watches over
its memory, its time and its processes, and publishes how it ended.
"""
