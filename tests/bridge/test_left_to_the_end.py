"""What a call leaves to the end of its process is done alike: in a job, an item of a map, and a call of a session."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.group import Group
from tests.bridge.host import Bench
from tests.unit.bridge.session.serving import Client, Server, of_main

PRINTS, FILES, LASTS = range(4, 7)
SOURCE = """
kept = None

def f(x):
    import atexit, gzip, os, sys, threading, time
    if x < 4:
        return False
    folder, main = {folder!r}, sys.modules["__main__"]

    def late():
        time.sleep(0.2)
        print("a thread")

    def packed(name):
        file = gzip.open(os.path.join(folder, name), "wt")
        file.write("kept")
        return file

    class Last:
        def __del__(self):
            packed("finalizer.gz").close()

    if x == 4:
        import _ctypes
        threading.Thread(target=late).start()
        atexit.register(print, "an exit function")
        printf = _ctypes.dlsym(_ctypes.dlopen(None, 0), "printf")
        _ctypes.call_function(printf, (b"C code\\n",))
    elif x == 5:
        global kept
        kept, main.kept = packed("global.gz"), packed("main.gz")
        cycle = [Last()]
        cycle.append(cycle)
        import sqlite3
        main.base = sqlite3.connect(os.path.join(folder, "kept.db"))
        main.base.execute("PRAGMA journal_mode=WAL"); main.base.execute("CREATE TABLE t (x)"); main.base.commit()

        class Asked(type):
            def __getattribute__(kind, name):
                raise RuntimeError(name)

        main.asked = Asked("Kept", (), {{}})()
    else:
        threading.Thread(target=time.sleep, args=(600,), name="loader").start()
    return "_clusterfn.bridge.worker.template" in sys.modules
    {waiting!r}, {failing!r}
"""


class Ran:
    """What the calls have left in files, and printed.

    Attributes:
        folder: With the files.
        printed: By the name of a stream, all that they have printed.
    """

    def __init__(self, folder: Path, printed: dict[str, str]) -> None:
        self.folder, self.printed = folder, printed


def run_jobs(bench: Bench, tmp_path: Path) -> Ran:
    printed = {"stdout": "", "stderr": ""}
    source = SOURCE.format(folder=str(tmp_path), waiting=(), failing=())
    for x in (PRINTS, FILES, LASTS):
        job, outcome = bench.run(source, x, grace_s=3.0 if x == LASTS else 60.0)
        assert outcome["kind"] == "returned", outcome
        printed = {name: text + job.output(name) for name, text in printed.items()}
    return Ran(tmp_path, printed)


def run_items(bench: Bench, tmp_path: Path) -> Ran:
    group = Group(bench, 7, 7, source=SOURCE, grace_s=9.0)

    assert group.start(1).wait(150) == 0

    assert all(group.value(1, x) for x in (PRINTS, FILES, LASTS)), "they were not forked"
    attempt = group.folder_of(1) / "attempts" / "1"
    return Ran(group.told, {name: (attempt / name).read_text() for name in ("stdout", "stderr")})


def run_session(bench: Bench, tmp_path: Path) -> Ran:
    names: dict[str, Any] = {}
    exec(SOURCE.format(folder=str(tmp_path), waiting=(), failing=()), names)
    server = Server(tmp_path, PYTHONUNBUFFERED="")
    try:
        client = Client(server)
        for number, x in enumerate((PRINTS, FILES, LASTS, 0), 1):
            client.send(number, of_main(names["f"]), x)
            # The last one begins once the process of the one before it has ended.
            assert client.end(number)[0]["kind"] == "returned"
    finally:
        for sock in server.sockets:
            sock.close()
        server.process.kill()
        server.process.communicate()
    found = {name: sorted(tmp_path.rglob(name)) for name in ("stdout", "stderr")}
    return Ran(tmp_path, {name: "".join(path.read_text() for path in paths) for name, paths in found.items()})


@pytest.mark.parametrize("run", [run_jobs, run_items, run_session])
def test_what_a_call_leaves_to_its_end_is_done(bench: Bench, tmp_path: Path, run):
    ran = run(bench, tmp_path)

    assert sorted(ran.printed["stdout"].splitlines()) == ["C code", "a thread", "an exit function"]
    names = ("global.gz", "main.gz", "finalizer.gz")
    assert {name: gzip.decompress((ran.folder / name).read_bytes()) for name in names} == dict.fromkeys(names, b"kept")
    assert [path.name for path in ran.folder.glob("kept.db*")] == ["kept.db"], "it was not closed"
    assert "Traceback" not in ran.printed["stderr"]
