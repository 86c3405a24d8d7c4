"""The worker: the process in the environment's own Python (3.9 and up) that runs the user's function.

    descriptors, children, devices ← payload, report ← execute ← main

It never decides how a job ended: it reports, and the supervisor judges. `bridge/session/` runs calls by `execute` too.
"""
