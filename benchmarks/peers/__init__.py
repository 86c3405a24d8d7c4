"""A thousand calls that do nothing, by clusterfn and by those who do the same: `python -m benchmarks peers`.

Each peer is installed from PyPI into an environment of its own, at the versions in `requirements`, and its passes are a
program of its own in `scripts`. Whoever starts a process for each call is compared with us; whoever reuses processes
promises less, and stands beside. Nothing here asserts.
"""
