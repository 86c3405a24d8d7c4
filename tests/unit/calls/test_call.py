"""The story of a call, as far as it goes before anything is sent."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
import time
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn import cluster
from clusterfn.calls import call, job_display, leaving
from clusterfn.calls.job import run_of, shown_to_end
from clusterfn.config import config_file
from clusterfn.config.config_file import LOCAL
from clusterfn.config.notes import CallNote
from clusterfn.config.options import parse_options
from clusterfn.config.spec import Interpreter
from clusterfn.display import console
from clusterfn.hosts.environment_choice import ResolvedEnvironment
from clusterfn.hosts.host_state import CALLER
from clusterfn.packing import files, notes, payload
from clusterfn.scheduler import scheduler_for
from tests.fakes.taken import taken
from tests.waiting import replace_here, until

OTHER = (3, 9) if CALLER != (3, 9) else (3, 10)


@pytest.fixture
def host(monkeypatch, tmp_path):
    """A host of which only the Python is asked; `expected` is what is known of it before packing."""
    monkeypatch.delenv("CLUSTERFN_CONFIG")
    monkeypatch.chdir(tmp_path)
    known = SimpleNamespace(expected=CALLER, version=CALLER)
    facts = SimpleNamespace(python="/usr/bin/python3", umask=0o77)
    known.host = SimpleNamespace(
        root="/root", bridge=SimpleNamespace(folder="/root/bridge/x"), settings=LOCAL,
        connection=SimpleNamespace(facts=facts),
        scheduler_rules=scheduler_for(LOCAL),
    )  # fmt: skip
    known.host.capacity = SimpleNamespace(enough=lambda resources: None)
    known.host.environments = SimpleNamespace(
        expected_python=lambda request: known.expected,
        find=lambda request, say, imports: ResolvedEnvironment(Interpreter("/usr/bin/python3", known.version), {}),
    )
    monkeypatch.setattr("clusterfn.calls.demand.open_host", lambda host: known.host)
    return known


def packed_for(monkeypatch):
    """The Pythons for which the call is packed, as they are added."""
    targets, pack = [], payload.pack

    def note(function, args, kwargs, target, imports, place):
        targets.append(target)
        return pack(function, args, kwargs)

    monkeypatch.setattr("clusterfn.packing.payload.pack", note)
    return targets


@pytest.mark.parametrize(("expected", "version"), [(CALLER, CALLER), (OTHER, OTHER), (CALLER, OTHER)])
def test_a_call_is_packed_again_only_where_its_environment_has_another_python(host, monkeypatch, expected, version):
    host.expected, host.version = expected, version
    targets = packed_for(monkeypatch)

    prepared = call.prepare(abs, (1,), {}, parse_options({"host": "local"}))

    assert targets == list(dict.fromkeys([expected, version]))
    assert prepared.job.interpreter.version == version


def test_a_note_is_said_once_unless_the_job_has_what_it_says_it_lacks(capsys, monkeypatch):
    monkeypatch.setenv("CLUSTERFN_QUIET", "1")
    lines = {"setup": ("umask 22", "export TEST_CALL_D=1"), "prolog": (": ${TEST_CALL_E:=1}",)}
    found = [CallNote("variable", f"TEST_CALL_{each}", f"{each} is not sent") for each in "ABCDE"]
    for is_this_machine in (True, False, False):
        host = SimpleNamespace(is_this_machine=is_this_machine, **lines)
        job: Any = SimpleNamespace(host=host, env={"TEST_CALL_B": "1"}, secrets={"TEST_CALL_C": "1"})
        of_value = CallNote("module-value", "test_call.RATE", f"RATE is {is_this_machine} here")
        compiled = CallNote("compiled", "x", "x is compiled, which is not said in quiet mode")
        notes.tell((*found, of_value, compiled), job, is_in_place=is_this_machine)

    assert capsys.readouterr().err == "clusterfn: RATE is True here\nclusterfn: A is not sent\n"


def test_a_note_that_clusterfn_yml_hides_is_not_said(monkeypatch, capsys, tmp_path):
    path = tmp_path / "clusterfn.yml"
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    path.write_text("notes: {hide: [global]}\n")
    config_file.load()
    for id_ in ("global", "edited"):
        console.note(CallNote(id_, f"{tmp_path} {id_}", f"a note on {id_}"))

    path.write_text("quiet: false\n")
    config_file.load()
    console.note(CallNote("global", f"{tmp_path} global", "a note on global"))

    assert capsys.readouterr().err == "clusterfn: a note on edited\nclusterfn: a note on global\n"


def test_arguments_that_the_function_does_not_take_are_refused_before_a_host_is_asked(host):
    host.settings = None

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        cluster(lambda x: 2 * x)()


@pytest.mark.parametrize(("printed", "what"), [(b"", "stays in the queue of"), (b"began\n", "keeps running on")])
def test_what_has_printed_something_runs_though_the_event_that_says_so_is_still_on_its_way(monkeypatch, printed, what):
    replace_here(monkeypatch, time, "sleep", lambda _: None)
    said = []
    monkeypatch.setattr(console, "say", lambda text, *_: said.append(text))
    job = taken()
    run_of(job).set_state("PENDING", "SLURM has not said why it waits")

    run_of(job).tell("stdout", printed)
    leaving.interrupted(run_of(job), "detach")

    assert f"{job.id} {what} tensor01." in said[0]


@pytest.mark.parametrize(("after_s", "is_said"), [(600.0, False), (0.0, True)])
def test_why_a_call_waits_is_not_said_in_its_first_seconds(monkeypatch, after_s, is_said):
    monkeypatch.setattr("clusterfn.hosts.spoken_wait.REASON_AFTER_S", after_s)
    job = taken()
    run_of(job).set_state("PENDING", "Priority: waiting for its turn")

    def end():
        try:
            assert not is_said or until(lambda: "Priority" in shown.getvalue())
        finally:
            job.set_result(5)
            run_of(job).tell("done", None)

    with contextlib.redirect_stderr(io.StringIO()) as shown:
        threading.Timer(0.3, end).start()
        assert shown_to_end(job, "train on tensor01") == 5

    assert ("Priority" in shown.getvalue()) is is_said


def test_the_output_of_a_job_that_runs_does_not_change_its_state():
    job = taken()
    run_of(job).set_state("PENDING", "its turn")
    run_of(job).tell("stdout", b"first\n")
    first = job.status
    run_of(job).set_state("RUNNING", "a hundred lines")

    run_of(job).tell("stderr", b"more\n")

    assert (first, job.status) == ("STARTING", "RUNNING (a hundred lines)")


def test_a_call_whose_arguments_take_long_to_pack_says_so(monkeypatch, capsys):
    monkeypatch.setattr("clusterfn.hosts.spoken_wait.SPEAK_AFTER_S", 0.01)
    said = ""

    def is_said():
        nonlocal said
        said += capsys.readouterr().err
        return "clusterfn: preparing slow: reading and packing its arguments\n" in said

    with job_display.preparing("slow"):
        until(is_said)


MB = 1 << 20


def name_by_pieces(data):
    pieces = (hashlib.sha256(data[at : at + 4 * MB]).digest() for at in range(0, len(data), 4 * MB))
    return hashlib.sha256(b"clusterfn pieces of 4 MB\0" + b"".join(pieces)).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 4 * MB - 1, 4 * MB])
def test_the_name_of_a_buffer_is_its_sha256_with_its_crc(size):
    data = os.urandom(size)

    assert files.name_of_buffer(memoryview(data)) == (hashlib.sha256(data).hexdigest(), zlib.crc32(data))


@pytest.mark.parametrize("size", [4 * MB + 1, 8 * MB, 21 * MB + 3])
@pytest.mark.parametrize("cores", [1, 2, 64, None])
def test_the_name_of_a_large_buffer_does_not_depend_on_the_number_of_cores(monkeypatch, size, cores):
    data = os.urandom(size)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)

    assert files.name_of_buffer(memoryview(data)) == (name_by_pieces(data), zlib.crc32(data))


def test_a_buffer_has_a_name_when_no_thread_can_be_started(monkeypatch):
    def refuse(*_):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", refuse)
    data = os.urandom(5 * MB)

    assert files.name_of_buffer(memoryview(data)) == (name_by_pieces(data), zlib.crc32(data))
