"""Starts the worker. A script is never byte-compiled, so it only imports a module that is."""

import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)

from _clusterfn.bridge import worker  # type: ignore[import-not-found] # noqa: E402

sys.path[:] = [folder for folder in sys.path if folder != here]
worker.main(sys.argv)
