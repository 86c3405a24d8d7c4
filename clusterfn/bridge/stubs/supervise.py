"""Starts the supervisor. A script is never byte-compiled, so it only imports a module that is."""

import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)
with open(here + "/_clusterfn/bridge/agent/byte_code.py") as file:
    exec(file.read(), {})

from _clusterfn.bridge.supervisor import program  # type: ignore[import-not-found] # noqa: E402

sys.exit(program.main(sys.argv[1:]))
