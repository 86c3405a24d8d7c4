"""Build environments on the host: fetch archives, check them, unpack each once, link, verify, rename.

The client starts it through the stub `build.py`; the supervisor uses `leases` too. It runs on Python 3.6 without conda,
and never imports what it installs.
"""
