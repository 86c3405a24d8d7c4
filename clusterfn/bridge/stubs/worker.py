"""Starts the worker. A script is never byte-compiled, so it only imports a module that is."""

import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)

from _clusterfn.bridge.worker import main  # type: ignore[import-not-found] # noqa: E402

sys.path[:] = [folder for folder in sys.path if folder != here]
main.main(sys.argv)
