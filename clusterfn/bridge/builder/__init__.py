"""Builds environments on the host: fetches, checks, unpacks once, links, verifies, renames. Python 3.6, no conda.

Started by the client through the stub `build.py`; `leases` is also called by the supervisor. It never imports what it
installs.
"""
