"""Starts the supervisor. A script is never byte-compiled, so it only imports a module that is."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from _clusterfn.bridge.supervisor import program  # type: ignore[import-not-found]

program.leave(program.main(sys.argv[1:]))
