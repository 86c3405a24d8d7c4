"""Starts the worker; multiprocessing's spawned children, which run this file as __mp_main__, get the shipped names."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from _clusterfn.bridge import worker  # type: ignore[import-not-found]

del sys.path[0]
if __name__ == "__main__":
    worker.main(sys.argv)
else:
    globals().update(worker.shipped_names())
