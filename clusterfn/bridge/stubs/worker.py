"""Starts the worker; multiprocessing's spawned children, which run this file as __mp_main__, get the shipped names."""

import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)

from _clusterfn.bridge import worker  # type: ignore[import-not-found] # noqa: E402

sys.path[:] = [folder for folder in sys.path if folder != here]
if __name__ == "__main__":
    worker.main(sys.argv)
else:
    globals().update(worker.shipped_names())
