"""Grid Engine: the scheduler of a host with `scheduler: grid_engine`."""

from clusterfn.scheduler.grid_engine.site import GridEngineSite
from clusterfn.scheduler.grid_engine.submit import GridEngine

__all__ = ["GridEngine", "GridEngineSite"]
