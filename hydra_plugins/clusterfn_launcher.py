"""Where Hydra looks for launchers: `hydra/launcher=clusterfn`."""

from clusterfn.integrations.hydra_launcher import ClusterfnLauncher

__all__ = ["ClusterfnLauncher"]

ClusterfnLauncher.__module__ = __name__  # Hydra accepts only classes of this package
