"""What each word of `scheduler:` means for the other keys of its host in clusterfn.yml."""

from __future__ import annotations

from collections.abc import Mapping

from clusterfn.bridge.schedulers.registry import SCHEDULERS
from clusterfn.config.scheduler_keys import SchedulerKeys

SCHEDULER_KEYS: Mapping[str, SchedulerKeys] = {
    "bare": SchedulerKeys("jobs are processes on the host"),
    **{word: scheduler.import_part(scheduler.keys) for word, scheduler in SCHEDULERS.items()},
    "local": SchedulerKeys("your own machine"),
}
