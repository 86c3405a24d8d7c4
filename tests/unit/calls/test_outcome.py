"""An outcome that a host published, as a value or an exception, with as much memory as was announced and is here."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import sys
import types
from importlib.metadata import PackageNotFoundError
from unittest.mock import Mock

import pytest
from IPython.core.interactiveshell import InteractiveShell

from clusterfn import errors
from clusterfn.bridge import layout
from clusterfn.calls import outcome, outcome_errors
from clusterfn.calls.arriving import Arriving
from clusterfn.calls.job import Job
from clusterfn.calls.job_tracker import Tracker
from clusterfn.config.spec import ResultPolicy
from clusterfn.errors import ResultError
from clusterfn.hosts import serialization
from clusterfn.hosts.host_state import FollowWindow
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.packing.project import modules
from tests.unit.calls.received import PLACE, container, limit_memory, missing, printed, raised, thrown, written
from tests.waiting import WAIT_S

exceptions = serialization.part("exceptions")
DIED = sorted(layout.KINDS - {layout.RETURNED, layout.RAISED})


class StillHere(Exception):
    pass


def test_what_is_too_large_says_its_size_the_limit_and_how_to_fetch_it():
    place = PLACE._replace(results=ResultPolicy(max_bytes=2 << 20))

    error = outcome.too_large({"kind": "returned", "value": {"size": (2 << 20) + 5}}, place)

    assert error.message == "the value has 2 MB (2097157 bytes), more than max_result=2MB: it was not fetched"
    assert error.hint.endswith(f"clusterfn.attach({place.job!r}).result(max_result='3MB')")
    assert outcome.too_large({"kind": "returned", "value": {"size": 2 << 20}}, place) is None


class Odd(PermissionError):
    """As of libraries whose exceptions lose on their way what their own code reads."""

    @property
    def filename(self):
        raise AttributeError("response")

    def __str__(self):
        raise AttributeError("response")


class OddValue(ValueError):
    """Its text needs what nobody set, as `pydantic.v1.errors.ColorError` without a keyword."""

    def __str__(self):
        raise KeyError("value")


@pytest.mark.parametrize("odd", [Odd(13, "no access"), OddValue("x")])
def test_an_exception_whose_own_code_fails_arrives_as_its_type(odd):
    found = raised(odd)

    assert type(found) is type(odd) and found.args == odd.args
    assert "Odd" in found.__cause__.text and "str() failed" in found.__cause__.text
    assert outcome_errors.in_a_line(Odd()) == "Odd: <no message: its __str__ raised AttributeError>"


@pytest.mark.parametrize("kind", DIED)
def test_each_kind_of_end_has_its_class_and_keeps_its_facts(kind):
    published = {
        "kind": kind, "message": "it ended", "stage": "function", "evidence": ["e"], "hint": "h", "attempt": 2,
        "node": "n1", "code": 3, "signal": "SIGSEGV",
    }  # fmt: skip

    error = outcome_errors.exception_of(published, None, PLACE)

    assert type(error) is outcome_errors.ERRORS.get(kind, errors.JobError) and "it ended" in str(error)
    assert (error.host, error.job, error.stage) == ("tensor01 (n1)", "7f3a", "function")
    assert (error.evidence, error.hint) == (("e",), "h")
    assert error.retryable == (kind in ("node", "lost", "taken_back"))
    assert error.log == "tensor01:/root/jobs/7f3a/attempts/2"


def test_a_full_disk_has_the_error_of_the_function_as_its_cause_and_the_number_and_file_of_that():
    error = raised(OSError(errno.EDQUOT, "Disk quota exceeded", "/data/x"), kind="disk", message="no room")

    assert isinstance(error, errors.DiskFull) and type(error.__cause__) is OSError
    assert (error.errno, error.filename) == (errno.EDQUOT, "/data/x")


def test_every_final_kind_but_value_and_exception_is_in_the_table():
    assert set(outcome_errors.ERRORS) == set(DIED) - layout.NOT_FINAL


@pytest.mark.parametrize("message", ["the moon was full", None])
def test_a_kind_of_a_later_version_is_a_job_error(message):
    error = outcome_errors.exception_of({"kind": "moonstruck", "message": message}, None, PLACE)

    assert type(error) is errors.JobError and (message or "moonstruck") in str(error)


def test_a_missing_module_is_named(monkeypatch):
    module = types.ModuleType("only_on_the_host")
    exec("class Thing: pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_on_the_host", module)
    about, data = written(module.Thing())
    monkeypatch.delitem(sys.modules, "only_on_the_host")

    with pytest.raises(errors.ResultError, match="needs the module only_on_the_host") as caught:
        outcome.value_of({"kind": "returned", "value": about}, data, PLACE)
    assert caught.value.stage == "result" and "install only_on_the_host" in caught.value.hint


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-1], lambda data: data[:-1] + b"x", lambda data: bytearray(), lambda data: None]
)  # fmt: skip
def test_a_damaged_value_is_a_result_error(spoil):
    about, data = written([1, 2, 3])

    with pytest.raises(errors.ResultError, match="the value is damaged") as caught:
        outcome.value_of({"kind": "returned", "value": about}, spoil(data), PLACE)
    assert "attach('7f3a')" in caught.value.hint


def test_a_value_of_another_python_names_both(monkeypatch):
    about, data = written(1)
    monkeypatch.setattr(sys, "version_info", (3, 8, 1))

    with pytest.raises(errors.ResultError, match=r"made by Python 3\.\d+, but this is Python 3\.8") as caught:
        outcome.value_of({"kind": "returned", "value": about}, data, PLACE)
    assert caught.value.hint.startswith("attach to the job from Python 3.")


class Outdated:
    def __setstate__(self, state):
        raise AttributeError("'Outdated' object has no attribute 'new'")

    def __getstate__(self):
        return {"old": 1}


def test_a_value_of_another_version_of_a_package_names_both_versions(monkeypatch):
    load_failure = serialization.part("load_failure")
    monkeypatch.setattr(load_failure, "version_of", {"tests": "2.0"}.get)
    about, data = written([Outdated()])
    monkeypatch.setattr(load_failure, "version_of", {"tests": "1.0"}.get)

    with pytest.raises(errors.ResultError, match="no attribute 'new', in tests.*Outdated") as caught:
        outcome.value_of({"kind": "returned", "value": about}, data, PLACE)
    assert "tests is 2.0 where it was sent and 1.0 where it arrived" in str(caught.value)
    assert "pip install tests==2.0" in caught.value.hint


def test_neither_the_remote_traceback_nor_a_note_obeys_the_host_on_the_terminal():
    told = {"type": "ValueError", "message": "boom", "traceback": "Traceback\x1b]0;PWNED\x07\n\tx\x1b[2J\r"}
    shown = printed(raised(ValueError("boom"), exception=told, earlier=["lost\x1b[2J a card"]))

    assert "Traceback\n\tx\n" in shown and "lost a card" in shown
    assert not {*shown} & {*"\x1b\x07\r"}


class Request:
    def __init__(self, token):
        self.token = token

    def __repr__(self):
        return f"<Request {self.token}>"


class Denied(Exception):
    """As of libraries that hang what was sent on their errors, and say themselves how they are pickled."""

    def __init__(self, url, token):
        super().__init__(url)
        self.headers, self.request = {"a": [token.encode(), 7], token: ()}, Request(token)

    def __reduce__(self):
        return Denied, (self.args[0], self.request.token)


def test_the_records_of_an_exception_hold_no_secret_and_give_the_same_exception():
    error = thrown(Denied("https://x?token=sesame", "sesame"))
    error.__cause__ = KeyError("sesame")
    error.__dict__["__notes__"] = ["with sesame"]
    records = exceptions.to_records(error, None, ["sesame"])
    again = exceptions.from_records(records)

    assert b"sesame" not in pickle.dumps(records)
    assert type(again) is Denied and again.args == ("https://x?token=***",) and again.__notes__ == ["with ***"]
    assert (again.headers, again.request) == ({"a": [b"***", 7], "***": ()}, "<Request ***>")
    assert again.__cause__.args == ("***",)


def test_an_exception_keeps_its_class_when_the_name_of_that_holds_a_secret():
    error = StillHere("Still why", StillHere)
    records = exceptions.to_records(error, None, ["Still"])
    again = exceptions.from_records(records)

    assert type(again) is StillHere
    assert again.args == ("*** why", f"<class '{__name__}.***Here'>")


def test_an_error_of_cuda_that_cannot_be_rebuilt_has_the_advice_as_its_hint():
    facts = {**exceptions.summary(RuntimeError("CUDA out of memory")), "type": "torch.OutOfMemoryError"}

    error = outcome_errors.exception_of({"kind": "raised", "exception": facts, "stage": "function"}, None, PLACE)

    assert type(error) is errors.FunctionError and "a smaller batch" in error.hint


def test_a_job_that_had_gpus_is_not_advised_to_ask_for_one():
    told = raised(RuntimeError("No CUDA GPUs are available"), usage={"gpus": [{"uuid": "GPU-1"}]})

    assert told.__notes__ == ["the job had GPUs: `clusterfn check tensor01 --gpus 1` shows why PyTorch cannot use them"]


@pytest.mark.parametrize("facts", [{}, {"exception": None}, {"exception": {"type": "mod.Odd"}}])
@pytest.mark.parametrize("value", [None, bytearray(), bytearray(b"nonsense")])
def test_an_exception_of_which_little_is_left_is_a_function_error(facts, value):
    got = outcome_errors.exception_of({"kind": "raised", "message": "mod.Odd: text", **facts}, value, PLACE)

    assert type(got) is errors.FunctionError and "the function raised" in str(got)


def test_a_remote_traceback_names_the_cell_of_the_notebook():
    shell = InteractiveShell.instance()
    try:
        file = shell.compile.cache("def f(): 1 / 0", 6)
        text = f'Traceback:\n  File "{file}", line 2, in f\n  File "/opt/x.py", line 3, in g\n'

        told = outcome.name_files_as_here(text)
    finally:
        InteractiveShell.clear_instance()
    assert told == 'Traceback:\n  Cell In[6], line 2, in f\n  File "/opt/x.py", line 3, in g\n'


def test_missing_metadata_of_a_package_is_not_reported_as_a_missing_module():
    refused = PackageNotFoundError("mypkg")
    facts = {**exceptions.summary(refused), "missing": {"module": "mypkg", "python": "/p/python", "metadata": True}}

    error = outcome_errors.exception_of({"kind": "payload", "exception": facts, "message": "m"}, None, PLACE)

    assert error.hint.startswith("/p/python on tensor01 has no metadata of mypkg: install mypkg there")
    assert "pip install -e ." in error.hint


@pytest.mark.parametrize("name", ["built_here", "built_here.fast"])
def test_a_compiled_module_of_ones_own_is_to_be_installed_there(tmp_path, monkeypatch, name):
    (tmp_path / "built_here").mkdir()
    (tmp_path / "built_here/__init__.py").touch()
    (tmp_path / "built_here/fast.abi3.so").touch()
    monkeypatch.syspath_prepend(tmp_path)
    modules.collect(["built_here"])[0]

    text = printed(missing(name))

    assert "built_here is your own, and is not sent, because fast.abi3.so is compiled" in text and "pip install" in text


VALUE = bytearray(os.urandom(3 << 20))


def coming(value: object) -> tuple[bytes, bytes]:
    """The file of a value, and its outcome.json."""
    file = io.BytesIO()
    told = {"kind": "returned", "value": container.dump(value, file)}
    return file.getvalue(), json.dumps(told).encode()


class Large:
    """Pickles next to the stream, as arrays do."""

    def __reduce_ex__(self, protocol):
        import pickle

        return bytearray, (pickle.PickleBuffer(VALUE),)


DATA, CONTENT = coming(Large())


def give(arriving: Arriving, data: bytes, step: int = 65536) -> None:
    for at in range(0, len(data), step):
        arriving.write(data[at : at + step])


@pytest.fixture
def little_memory(monkeypatch):
    limit_memory(monkeypatch, lambda: 1000)


def test_more_than_was_announced_is_rejected():
    arriving = Arriving(PLACE)
    arriving.announce(CONTENT)

    with pytest.raises(ResultError, match="more bytes arrived than"):
        give(arriving, DATA + b"x")


def test_a_value_that_memory_cannot_hold_is_rejected_before_it_comes(little_memory):
    with pytest.raises(ResultError, match="1000 bytes of free memory"):
        Arriving(PLACE).announce(CONTENT)


def test_memory_that_is_gone_after_all_is_an_error_of_the_result():
    arriving = Arriving(PLACE)
    arriving.announce(CONTENT)
    arriving.value = Mock(__len__=lambda _: 0, __iadd__=Mock(side_effect=MemoryError))

    with pytest.raises(ResultError, match="no room for the value"):
        arriving.write(b"x")


def test_values_that_come_at_once_share_the_memory_that_is_free(monkeypatch):
    limit_memory(monkeypatch, lambda: 10 << 20)
    told = {"kind": "returned", "value": {"size": 4 << 20, "crc": 1}}
    both = [Arriving(PLACE), Arriving(PLACE)]
    for each in both:
        each.expect(told)

    third = Arriving(PLACE)
    with pytest.raises(ResultError, match="free memory"):
        third.expect(told)

    both[0].take()
    third.expect(told)


@pytest.mark.parametrize(("kind", "state"), [("returned", "RETURNED"), ("raised", "RAISED"), ("lost", "DIED")])
def test_a_job_ends_as_its_outcome_says_though_its_value_has_no_room_here(little_memory, kind, state):
    session = Mock(root="/root", settings=Mock(result_policy=ResultPolicy), follow_window=FollowWindow())
    tracker = Tracker(session, "7f3a000011112222", "train")
    job = Job(tracker.run, tracker.source)
    reply = session.connection.follow.return_value = Reply(lambda: None)
    tracker.follow()
    content = json.dumps({"kind": kind, "value": {"size": 2 << 20, "crc": 1}}).encode()

    with pytest.raises(ResultError) as refused:
        tracker.source.arriving.announce(content)
    reply.reject(refused.value)  # as the connection does with what a receiver raises

    assert isinstance(job.exception(WAIT_S), ResultError)
    assert job.status.startswith(f"{state} (")
