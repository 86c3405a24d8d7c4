"""A group of items below a bench's root, and what has become of them. No test in here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bridge.host import JOB_SH, Bench, clean_environ, pickler

# Says that it began, and waits for the file `go` if it is one of those named.
ITEM = """
def f(x):
    import os, time
    with open(os.path.join({folder!r}, "began-%d" % x), "a") as file:
        file.write("%d\\n" % os.getpid())
    while x in {waiting!r} and not os.path.exists(os.path.join({folder!r}, "go")):
        time.sleep(0.01)
    if x in {failing!r}:
        raise ValueError(x)
    return x * x
"""


class Group:
    """A group of items below a bench's root."""

    def __init__(self, bench: Bench, count: int, chunk: int, waiting: tuple[int, ...] = (), **more: Any) -> None:
        self.bench = bench
        self.told = bench.root / f"told-{count}-{chunk}"
        self.told.mkdir()
        source, failing = more.pop("source", ITEM), more.pop("failing", ())
        source = source.format(folder=str(self.told), waiting=waiting, failing=failing)
        shared = {"count": count, "chunk": chunk, "per_element": None, "element_s": None, "aim_s": None, "elements": 1}
        shared.update(more.pop("group", {}))
        self.folder = bench.job(source, group=shared, **more).folder
        ends = pickler(bench.python, bench.bridge).ask(path=str(self.folder / "items.pkl"), count=count)
        (self.folder / "items.json").write_text(json.dumps(ends))

    def start(self, number: int, **env: str) -> subprocess.Popen[bytes]:
        """The supervisor of one element."""
        supervise = str(self.bench.bridge / "supervise.py")
        return self._start([self.bench.host, "-I", "-S", supervise, "run", str(self.folder_of(number))], env)

    def script(self, number: int) -> subprocess.Popen[bytes]:
        """The script of one element, which starts its supervisor and concludes for it."""
        text = JOB_SH.format(python=self.bench.host, bridge=self.bench.bridge, job=self.folder_of(number))
        path = self.told / f"job-{number}.sh"
        path.write_text(text)
        return self._start(["/bin/sh", str(path)], {})

    def folder_of(self, number: int) -> Path:
        folder = self.folder / "elements" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _start(self, argv: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        environ = clean_environ(**env)
        started = self.bench.inside(
            lambda: subprocess.Popen(argv, env=environ, start_new_session=True, stdout=subprocess.DEVNULL)
        )
        self.bench.started.append(started)
        return started

    def call(
        self, command: str, number: int, *rest: str, stdin: str = "", before: Callable[[], object] | None = None
    ) -> int:
        """Another of the supervisor's commands for one element; its exit code."""
        folder = self.folder / "elements" / str(number)
        argv = [self.bench.host, "-I", "-S", str(self.bench.bridge / "supervise.py"), command, str(folder), *rest]
        return subprocess.run(
            argv, input=stdin, text=True, env=clean_environ(), check=False, timeout=150, preexec_fn=before
        ).returncode

    def began(self, x: int) -> list[int]:
        """The pids of its starts."""
        path = self.told / f"began-{x}"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def go(self) -> None:
        (self.told / "go").touch()

    def ends(self) -> dict[int, list[str]]:
        """The kinds of the lines about each item's end."""
        found: dict[int, list[str]] = {}
        for path in sorted(self.folder.glob("elements/*/attempts/*/journal.jsonl")):
            for text in path.read_text().splitlines():
                line = json.loads(text) if text.startswith("{") and text.endswith("}") else {}
                if "index" in line:
                    found.setdefault(line["index"], []).append(line["kind"])
        return found

    def outcome(self, number: int | None = None, attempt: int = 1) -> dict[str, Any]:
        """Of the group, or of an element."""
        folder = self.folder if number is None else self.folder / "elements" / str(number)
        return json.loads((folder / "attempts" / str(attempt) / "outcome.json").read_text())

    def line(self, index: int) -> dict[str, Any]:
        """The first one that says how an item ended."""
        paths = sorted(self.folder.glob("elements/*/attempts/*/journal.jsonl"))
        texts = (text for path in paths for text in path.read_text().splitlines() if text.endswith("}"))
        return next(line for line in map(json.loads, texts) if line.get("index") == index)

    def value(self, number: int, index: int) -> Any:
        """An item's value, by the journal of an element's first attempt."""
        attempt = self.folder / "elements" / str(number) / "attempts" / "1"
        line = self.line(index)
        data = (attempt / "values").read_bytes()[line["at"] : line["at"] + line["value"]["size"]]
        path = self.told / "value"
        path.write_bytes(data)
        return pickler(self.bench.python, self.bench.bridge).ask(path=str(path))


def once(group: Group, count: int) -> bool:
    return [len(group.began(x)) for x in range(count)] == [1] * count
