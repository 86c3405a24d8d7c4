"""Seconds from a print on the host argv[1] to the same line here, as a JSON list. Both are one machine, one clock."""

import json
import sys
import time

from clusterfn import cluster


@cluster(host=sys.argv[1])
def speak(lines: int) -> None:
    import time

    for _ in range(lines):
        print(time.monotonic())
        time.sleep(0.02)


class Ear:
    """Stands where stdout is, and notes when each line comes."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def write(self, text: str) -> int:
        now = time.monotonic()
        self.delays += [now - float(line) for line in text.split()]
        return len(text)

    def flush(self) -> None:
        """Nothing is held."""


stdout, ear = sys.stdout, Ear()
sys.stdout = ear
speak(50)
sys.stdout = stdout
print(json.dumps(ear.delays), flush=True)
