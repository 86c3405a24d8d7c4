"""`Job.follow`: a submitted job shown as a plain call is, at any time of its life."""

from __future__ import annotations

import sys

import pytest

import clusterfn
from clusterfn import Session, cluster

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")


def talks(gate):
    import os
    import sys
    import time

    print("begun", flush=True)
    until = time.monotonic() + 200  # longer than any test waits
    while not os.path.exists(gate):
        if time.monotonic() > until:
            raise TimeoutError(gate)
        time.sleep(0.02)
    print("the end", "x" * 100_000)
    print("a warning", file=sys.stderr)
    return 7


talks.__module__ = "__main__"


class Gate:
    """Opens when the job's first line has been shown, which only a live output does."""

    def __init__(self, path, stream):
        self.path, self.stream, self.shown = path, stream, ""

    def write(self, text):
        self.shown += text
        if "begun\n" in self.shown:
            self.path.touch()
        return len(text)

    def flush(self): ...


def test_a_submitted_job_shows_its_output_as_it_comes_and_once_more_after_its_end(here, tmp_path, monkeypatch, capsys):
    gate = Gate(tmp_path / "gate", sys.stdout)
    job = cluster(host="here")(talks).submit(str(gate.path))

    monkeypatch.setattr(sys, "stdout", gate)
    assert job.follow() == 7
    first, gate.shown = gate.shown, ""
    assert job.follow() == clusterfn.attach(job.id).follow() == 7

    whole = "begun\nthe end " + "x" * 100_000 + "\n"
    assert (first, gate.shown) == (whole, 2 * whole)
    said = capsys.readouterr().err
    assert said.count(f"clusterfn: {job.id} talks on here\n") == 3 == said.count("a warning\n")


def test_a_call_of_a_session_is_followed_too_and_its_exception_is_raised(here, tmp_path, capsys):
    (tmp_path / "gate").touch()
    with Session("here") as session:
        assert session.submit(talks, str(tmp_path / "gate")).follow() == 7
        with pytest.raises(ZeroDivisionError):
            session.submit(divmod, 1, 0).follow()

    assert capsys.readouterr().out.startswith("begun\nthe end ")
