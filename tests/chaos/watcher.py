"""Looks on while jobs share a machine's cards: which names are bound, and strangers that it puts on cards itself.

What it saw goes to `holds` for judgement. One thread for each; made by the tests of cards.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator

from tests.chaos.holds import OURS, Seen
from tests.lab import OwnBox

LOOK_S = 0.02
SLOW_S = 0.05


class Watcher:
    """Looks all the time, for the length of a with block; `seen` is what it saw."""

    def __init__(self, box: OwnBox) -> None:
        self.seen = Seen()
        self._box = box
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._look)]

    def send_strangers(self, rng: random.Random) -> None:
        """Let strangers come and go from now on, one at a time."""
        self._threads.append(threading.Thread(target=self._visit, args=(rng,)))

    @contextlib.contextmanager
    def looking(self) -> Iterator[Seen]:
        """Until the block ends."""
        for thread in self._threads:
            thread.start()
        try:
            yield self.seen
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            began = time.monotonic()
            names = [name for name in self._box.cable.names() if name.startswith(OURS)]
            when = time.time()
            if time.monotonic() - began < SLOW_S:  # else it is not known at which moment they were bound
                self.seen.add(when, names)

    def _visit(self, rng: random.Random) -> None:
        while not self._over.wait(rng.uniform(0.5, 2.0)):
            gpu = rng.randrange(8)
            cards = self._box.cards
            visit = cards.hidden_memory(gpu, 700) if rng.random() < 0.3 else cards.process(gpu, os.getpid())
            with visit:
                since = time.time()
                self._over.wait(rng.uniform(1.0, 4.0))
                self.seen.strangers.append((self._box.uuids()[gpu], since, time.time()))
