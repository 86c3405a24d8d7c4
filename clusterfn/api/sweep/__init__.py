"""Many configurations of one function: `clusterfn.sweep`. Its story is `search`."""

from clusterfn.api.sweep.report import SweepResult, Trial
from clusterfn.api.sweep.search import sweep

__all__ = ["SweepResult", "Trial", "sweep"]
