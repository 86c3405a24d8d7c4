"""Takes the place of the user's script in a job: frameworks that start their own program again run the call by it.

Children that multiprocessing spawns run this file as __mp_main__, and get the names that came with the call.
"""

import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)
with open(here + "/_clusterfn/bridge/agent/byte_code.py") as file:
    exec(file.read(), {})

from _clusterfn.bridge.worker import payload  # type: ignore[import-not-found] # noqa: E402

sys.path[:] = [folder for folder in sys.path if folder != here]
if __name__ == "__main__":
    payload.run_again()
else:
    globals().update(payload.names_for_spawned_main())
