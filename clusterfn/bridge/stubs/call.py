"""Stands for the user's script in a job: frameworks that start their own program again run the job's call by it.

Children that multiprocessing spawns run this file as __mp_main__, and get the names that came with the call.
"""

import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)

from _clusterfn.bridge import shipped  # type: ignore[import-not-found] # noqa: E402

sys.path[:] = [folder for folder in sys.path if folder != here]
if __name__ == "__main__":
    shipped.run_again()
else:
    globals().update(shipped.shipped_names())
