"""Start dask on a host, and connect to it: a job for the scheduler and one for each worker, or one for all of them.

    plan ← jobs ← block ← client

Dask does all the rest. `client` imports nothing of it before it is asked for.
"""
