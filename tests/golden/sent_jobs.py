"""Send jobs of each kind from this version, and keep their files: `python -m tests.golden.sent_jobs FILE.tar.gz`.

A release adds such an archive, named by its version; test_sent_jobs.py lets the present version read all of them.
"""

from __future__ import annotations

import concurrent.futures
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = "/home/ann/made/root"  # as the root is called in the archive
_SETTLE_S = 5.0  # in which the supervisors end that have published an outcome


def add(first: int, second: int = 3) -> dict[str, int]:
    print("adding", first, second)
    return {"sum": first + second}


def divide(by: float) -> float:
    return 1 / by


def total(found: dict[str, int], more: int) -> int:
    return found["sum"] + more


def save(text: str) -> str:
    import clusterfn

    (clusterfn.checkpoint() / "state").write_text(text)
    Path("model.txt").write_text(text)
    return text


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def send() -> dict[str, str]:
    """Send one job of each kind, and wait for all of them; return their ids."""
    import clusterfn

    call = clusterfn.cluster
    sent: dict[str, Any] = {
        "returned": call(add).submit(2),
        "raised": call(divide).submit(0),
        "kept": call(keep=True)(add).submit(4),
        "files": call(outputs=["*.txt"])(save).submit("seen"),
        "cancelled": call(sleep).submit(600),
    }
    sent["taking"] = call(total).submit(sent["kept"], 1)
    with clusterfn.Session("here") as session:
        for each in (1, 2):
            assert session.submit(add, each).result(300)
        session_id = session.job.id
    while sent["cancelled"].status != "RUNNING":
        time.sleep(0.1)
    sent["cancelled"].stop()
    group = call(divide).map([1, 2, 0], on_error="collect")
    group.wait(300)
    retry = clusterfn.attach(group.id).retry_failed()
    retry.wait(300)
    concurrent.futures.wait(sent.values(), 300)
    time.sleep(_SETTLE_S)
    return {**{kind: job.id for kind, job in sent.items()}, "session": session_id, "group": group.id, "retry": retry.id}


def _portable(path: Path, root: Path) -> bytes:
    data = path.read_bytes()
    return data.replace(os.fsencode(root), ROOT.encode()) if path.suffix in (".json", ".jsonl", ".sh") else data


def pack(root: Path, ids: dict[str, str], archive: Path) -> None:
    """Write the folders of the jobs, and their ids, as they would be below `ROOT`."""
    import clusterfn

    def add_bytes(name: str, data: bytes, mode: int = 0o600) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), mode
        file.addfile(entry, io.BytesIO(data))

    with tarfile.open(archive, "w:gz") as file:
        add_bytes("sent.json", json.dumps({"version": clusterfn.__version__, "ids": ids}).encode())
        for path in sorted(root.glob("jobs/**/*")):
            name = path.relative_to(root).as_posix()
            if path.is_dir():
                file.add(path, name, recursive=False)
            else:
                add_bytes(name, _portable(path, root), path.stat().st_mode & 0o777)


def main(archive: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, config = Path(folder) / "root", Path(folder) / "clusterfn.yml"
        config.write_text(f"hosts:\n  here:\n    scheduler: local\n    root: {root}\n")
        os.environ.update(CLUSTERFN_CONFIG=str(config), XDG_STATE_HOME=folder)
        pack(root, send(), Path(archive))


if __name__ == "__main__":
    main(sys.argv[1])
