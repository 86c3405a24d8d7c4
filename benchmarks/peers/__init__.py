"""A thousand calls that do nothing, by clusterfn and by those who do the same: `python -m benchmarks peers`.

Each peer is installed from PyPI into an environment of its own, at the versions in `requirements`, and its passes are a
program of its own in `scripts`. Peers that start a process for each call are compared with clusterfn. Peers that reuse
processes promise less, and are listed apart. Nothing here asserts.
"""
