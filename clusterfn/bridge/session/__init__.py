"""Serve the calls of a session, each in a process forked from the session's worker.

`serve` is its loop, `preload` loads modules beforehand, `call` runs one call, and `keep_actor` those of an actor. Runs
in the environment's own Python. Otherwise a session is a job like any other: its supervisor watches its memory, time
and processes, and publishes how it ended.
"""
