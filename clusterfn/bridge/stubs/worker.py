"""Starts the worker. A script is never byte-compiled, so it only imports a module that is."""

import gc
import os
import sys

# What is loaded here stays to the end: `main` turns the collector of garbage on again.
gc.disable()

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)
with open(here + "/_clusterfn/bridge/agent/byte_code.py") as file:
    exec(file.read(), {})

from _clusterfn.bridge.worker import main  # type: ignore[import-not-found] # noqa: E402

sys.path[:] = [folder for folder in sys.path if folder != here]
main.main(sys.argv)
