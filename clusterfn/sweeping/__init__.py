"""Many configurations of one function: `clusterfn.sweep`. Its story is `story`."""

from clusterfn.sweeping.result import SweepResult, Trial
from clusterfn.sweeping.story import sweep

__all__ = ["SweepResult", "Trial", "sweep"]
