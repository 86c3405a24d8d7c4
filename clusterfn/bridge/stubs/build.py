"""Starts the builder of environments. A script is never byte-compiled, so it only imports a module that is."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from _clusterfn.bridge.builder import build  # type: ignore[import-not-found]

sys.exit(build.main(sys.argv[1:]))
