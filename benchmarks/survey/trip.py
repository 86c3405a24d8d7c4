"""The caller's side: a call there and back, by clusterfn's own code or by a library for pickling."""

from __future__ import annotations

import importlib
import json
import pickle
import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterfn.bridge import layout
from clusterfn.calls import outcome, outcome_errors
from clusterfn.config.spec import ResultPolicy
from clusterfn.packing import payload

TOOLS = ("clusterfn", "cloudpickle", "dill")
_CALL_S = 120  # a call may have to import a large library on a busy machine
_THERE = Path(__file__).with_name("there.py")


class TripFailed(Exception):
    """A call did not come back."""


class Worker:
    """A process of an environment that runs calls, each in the way of a job's worker.

    Args:
        python: The environment's interpreter.
        version: (major, minor) of it.
        bridge: The folder with the files that a host has of clusterfn.
        folder: For the files of a call; its own.
    """

    def __init__(self, python: str, version: tuple[int, int], bridge: str, folder: Path) -> None:
        self._argv = [python, str(_THERE), bridge]
        self._version = version
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        (folder / layout.BLOBS).mkdir(parents=True, exist_ok=True)

    def call(self, tool: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function there, and return its value or raise what it raised; by a library, `(True, value)`.

        Raises:
            TripFailed: By a library, it did not come back.
        """
        if tool != "clusterfn":
            return self._call_by(tool, function, args, kwargs)
        packed = payload.pack(function, args, kwargs, self._version)
        (self._folder / layout.PAYLOAD).write_bytes(packed.data)
        for digest, view in packed.blobs.items():
            (self._folder / layout.BLOBS / digest).write_bytes(view)
        facts = self._ask(tool)
        told = {"kind": facts.pop("done"), **facts, "value": {"size": facts.get("size", 0), "crc": facts.get("crc")}}
        data = bytearray((self._folder / layout.VALUE).read_bytes())
        place = outcome.JobLocation("there", "job", str(self._folder), ResultPolicy())
        if told["kind"] != layout.RETURNED:
            raise outcome_errors.exception_of(told, data, place)  # type: ignore[arg-type]
        return outcome.value_of(told, data, place)  # type: ignore[arg-type]

    def _call_by(self, tool: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        dumps = importlib.import_module("cloudpickle" if tool == "pickle" else tool).dumps
        (self._folder / layout.PAYLOAD).write_bytes(dumps((function, args, kwargs)))
        facts = self._ask(tool)
        if "failed" in facts:
            raise TripFailed(facts["failed"])
        loads = pickle.loads if tool == "pickle" else importlib.import_module(tool).loads
        returned, value = loads((self._folder / layout.VALUE).read_bytes())
        if returned:
            return value
        raise value

    def _ask(self, tool: str) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([tool, str(self._folder)]) + "\n")
        self._process.stdin.flush()
        try:
            ready, _, _ = select.select([self._process.stdout], [], [], _CALL_S)
            line = self._process.stdout.readline() if ready else ""
        except BaseException:  # its answer would be taken for that to the next call
            self.close()
            raise
        if not line:
            self.close()
            raise TripFailed("the worker ended" if ready else f"nothing came in {_CALL_S:.0f} s")
        return dict(json.loads(line))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None
