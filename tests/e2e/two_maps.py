"""Send a map, and another over its values; once that waits on the host, say both ids, and wait to be killed."""

import sys
import time

from clusterfn import cluster

host, folder = sys.argv[1:]


@cluster(host=host, memory="200MB")
def hold(path: str) -> str:
    import os
    import pathlib
    import time

    pathlib.Path(path + ".began").touch()
    while not os.path.exists(path):
        time.sleep(0.1)
    return path[-1]


@cluster(host=host, memory="200MB")
def note(path: str, value: str) -> str:
    import pathlib

    pathlib.Path(path).write_text(value)
    return value


models = hold.map([f"{folder}/go-{number}" for number in range(2)])
scores = note.map([f"{folder}/did-{number}" for number in range(2)], models)
while "waiting for" not in scores.status:
    time.sleep(0.1)
print(models.id, scores.id, flush=True)
time.sleep(600)
