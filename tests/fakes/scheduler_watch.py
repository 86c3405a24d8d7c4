"""A watch on a scheduler, whose clock is the test's own, and whose host answers what the test says."""

import asyncio
from concurrent.futures import CancelledError

from clusterfn import HostError
from clusterfn.hosts import loop
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.hosts.rpc.requests import CommandLook
from clusterfn.hosts.scheduler_watch import SchedulerWatch
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.samples import SLURM


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Connection:
    """Remembers what is being repeated; the test answers."""

    def __init__(self):
        self.asked, self.delays = [], []
        self.on_look = None
        self.stopped = 0
        self.link, self.is_closed = self, False

    def usable(self):
        return not self.is_closed

    def repeat(self, argv, interval_s, *, unset, on_look, delay_s=0.0):
        assert argv and "SQUEUE_" in unset
        self.asked.append(interval_s)
        self.delays.append(delay_s)
        self.on_look = on_look
        self.repeating = Reply(self.stop)
        return self.repeating

    def stop(self):
        self.stopped += 1
        self.on_look = None
        self.repeating.reject(CancelledError())

    def fail_once_asked(self):
        """Say that the scheduler could not be asked, as soon as it is."""

        async def reject():
            while self.on_look is None:
                await asyncio.sleep(0.01)
            self.fail()

        loop.begin(reject())

    def fail(self):
        self.repeating.reject(HostError("squeue is gone"))

    def answer(self, *lines, rc=0, err="", took_s=0.0):
        self.on_look(CommandLook(rc, "\n".join(lines), err, took_s=took_s))
        loop.settle()


class Watch:
    """A watch whose calls have had their effect when they return."""

    def __init__(self, *args, **more):
        self.watch = SchedulerWatch(*args, **more)

    def last_look(self, limit_s):
        return self.watch.last_look(limit_s)

    def __getattr__(self, name):
        def call(*args):
            getattr(self.watch, name)(*args)
            loop.settle()

        return call


def watch_slurm(**more):
    """A watch on SLURM, what it asks, and its clock."""
    clock, connection = Clock(), Connection()
    return Watch(connection, Slurm(SLURM, "ada"), clock=clock, **more), connection, clock


def watch_machine(has_queue=True):
    """The same of a machine without a scheduler, with a queue of its own or without."""
    clock, connection = Clock(), Connection()
    bare = Bare("boot", lambda: ("supervise", "queue")) if has_queue else Bare()
    return Watch(connection, bare, clock=clock), connection, clock
