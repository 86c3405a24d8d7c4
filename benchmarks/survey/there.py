"""The job's side: runs one call after another by the code of a real worker.

Started as `there.py <folder of the bridge>`, by the Python of the environment. Knows nothing of the survey: each line
that it reads names a tool and a folder with a call; each line that it writes says what became of it.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import socket
import sys
from pathlib import Path
from typing import Any


def serve(bridge: str) -> None:
    """Run calls until the other side closes its pipe."""
    sys.path.insert(0, bridge)
    from _clusterfn.bridge.worker import execute, report

    sys.path[:] = [folder for folder in sys.path if folder != bridge]
    sys.path.append(os.path.join(bridge, "library"))
    commands, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    said = report.Report(os.dup(nothing))
    socket.getaddrinfo = _find_no_host
    for line in commands:
        tool, folder = json.loads(line)
        facts = _run(execute, said, folder) if tool == "clusterfn" else _run_by(tool, folder)
        replies.write(json.dumps(facts) + "\n")
        replies.flush()


def _find_no_host(*_: object, **__: object) -> Any:
    raise OSError("a survey connects to nothing")


def _run(execute: Any, said: Any, folder: str) -> dict[str, Any]:
    value = os.open(os.path.join(folder, "value.pkl"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        call, caller = execute.load_call(folder, {"root": folder, "scheduler": "local"}, [])
        kind, result = execute.call_function(call, None)
        return dict(execute.keep_result(kind, result, value, caller, said, sync=False, is_data=False))
    except execute.CallRejected as rejected:
        return dict(rejected.facts)


def _run_by(tool: str, folder: str) -> dict[str, Any]:
    """Do the same by a library for pickling; "pickle" brings what `cloudpickle` sent."""
    loads = importlib.import_module("cloudpickle" if tool == "pickle" else tool).loads
    dumps = pickle.dumps if tool == "pickle" else importlib.import_module(tool).dumps
    try:
        function, args, kwargs = loads(Path(folder, "payload.pkl").read_bytes())
        try:
            result = (True, function(*args, **kwargs))
        except Exception as error:
            result = (False, error)
        Path(folder, "value.pkl").write_bytes(dumps(result))
    except BaseException as error:  # foreign code may raise anything
        return {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    return {}


if __name__ == "__main__":
    serve(sys.argv[1])
