"""An outcome that a host published, as a value or an exception."""

from __future__ import annotations

import bdb
import concurrent.futures
import io
import os
import pickle
import sys
import traceback
import types
from importlib.metadata import PackageNotFoundError

import pytest
from IPython.core.interactiveshell import InteractiveShell

from clusterfn import errors
from clusterfn.bridge import layout
from clusterfn.calls import outcome, outcome_errors
from clusterfn.config import units
from clusterfn.config.spec import ResultPolicy
from clusterfn.hosts import serialization
from clusterfn.packing import module_sources

container, exceptions = serialization.part("container"), serialization.part("exceptions")
PLACE = outcome.JobLocation("tensor01", "7f3a", "/root/jobs/7f3a", ResultPolicy())
DIED = sorted(layout.KINDS - {layout.RETURNED, layout.RAISED})


class StillHere(Exception):
    pass


def written(value: object) -> tuple[dict, bytearray]:
    file = io.BytesIO()
    return container.dump(value, file), bytearray(file.getvalue())


def returned(value: object, **facts):
    about, data = written(value)
    return outcome.value_of({"kind": "returned", "value": about, **facts}, data, PLACE)


def raised(error: BaseException) -> BaseException:
    about, data = written(exceptions.to_records(error))
    published = {"kind": "raised", "value": about, "exception": exceptions.summary(error), "stage": "function"}
    return outcome_errors.exception_of(published, data, PLACE)


def thrown(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("limit", "size", "says"),
    [
        ("1500KB", 1_600_000, "the value has 1.5 MB, more than max_result=1500KB: it was not fetched"),
        ("2GB", (2 << 30) + (40 << 20), "the value has 2088 MB, more than max_result=2GB: it was not fetched"),
        ("2MB", (2 << 20) + 5, "the value has 2097157 bytes, more than max_result=2MB: it was not fetched"),
    ],
)
def test_what_is_too_large_shows_the_limit_as_it_was_set_and_the_difference(limit, size, says):
    place = PLACE._replace(results=ResultPolicy(max_bytes=units.parse_memory(limit)))

    error = outcome.too_large({"kind": "returned", "value": {"size": size}}, place)

    assert error.message == says


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


class Abandoned(concurrent.futures.CancelledError):
    """As `s3transfer.exceptions.FatalError`."""


def test_an_error_of_a_library_that_is_a_cancellation_arrives_as_its_type_and_a_bare_one_does_not():
    assert type(raised(Abandoned("x"))) is Abandoned
    assert type(raised(concurrent.futures.CancelledError("x"))) is errors.FunctionError


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
    assert error.log == "tensor01:/root/jobs/7f3a/attempts/2"


def test_every_final_kind_but_value_and_exception_is_in_the_table():
    assert set(outcome_errors.ERRORS) >= set(DIED) - {layout.SUPERSEDED}
    assert set(outcome_errors.ERRORS) <= layout.KINDS


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
    about, data = written(exceptions.to_records(ValueError("boom")))
    told = {"type": "ValueError", "message": "boom", "traceback": "Traceback\x1b]0;PWNED\x07\n\tx\x1b[2J\r"}
    published = {"kind": "raised", "value": about, "exception": told, "earlier": ["lost\x1b[2J a card"]}
    shown = "".join(traceback.format_exception(outcome_errors.exception_of(published, data, PLACE)))

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


def test_an_exception_that_counts_as_false_keeps_its_place():
    class Empty(Exception):
        def __len__(self):
            return 0

    error = StillHere("why")
    error.__cause__ = Empty()

    assert type(raised(thrown(error)).__cause__) is Empty


def test_lightning_with_several_processes_on_each_node_is_advised_to_use_the_launcher():
    said = (
        "You set `devices=2` in Lightning, but the number of tasks per node configured in SLURM `--ntasks-per-node=1` "
        "does not match. HINT: Set `devices=1`."
    )

    assert "clusterfn calls the function once on each node" in printed(raised(thrown(ValueError(said))))
    assert "once on each node" not in printed(raised(thrown(ValueError("You set `devices=2` in Lightning"))))


def test_the_hint_at_a_file_that_is_only_here(tmp_path):
    (tmp_path / "x.csv").touch()

    error = raised(thrown(FileNotFoundError(2, "No such file or directory", str(tmp_path / "x.csv"))))

    assert "on tensor01; it is on this machine: pass clusterfn.File(" in str(error) and error.errno == 2


def test_the_hint_at_a_file_of_this_home_that_nobody_there_may_look_at(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "x.csv").touch()

    assert "clusterfn.File(" in str(raised(thrown(PermissionError(13, "Permission denied", str(tmp_path / "x.csv")))))
    assert "clusterfn.File(" not in str(raised(thrown(PermissionError(13, "Permission denied", os.devnull))))


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("No CUDA GPUs are available", "gpus=1"),
        ("Found no NVIDIA driver on your system. Please check", "gpus=1"),
        ("CUDA error: uncorrectable ECC error encountered", "retries=2"),
        ("CUDA error: device-side assert triggered", "CUDA_LAUNCH_BLOCKING=1"),
        ("CUDA out of memory. Tried to allocate 20.00 MiB", "a smaller batch"),
        ("CUDA error: no kernel image is available for execution on the device", "torch.cuda.get_arch_list()"),
        ("Cannot re-initialize CUDA in forked subprocess", "get_context('spawn')"),
    ],
)
def test_an_error_of_cuda_comes_with_what_to_do_about_it(said, advice):
    error = raised(thrown(RuntimeError(said)))

    assert type(error) is RuntimeError and str(error) == said
    assert advice in error.__notes__[0] and ("retries=" in error.__notes__[0]) == (advice == "retries=2")


def test_an_error_of_cuda_that_cannot_be_rebuilt_has_the_advice_as_its_hint():
    facts = {**exceptions.summary(RuntimeError("CUDA out of memory")), "type": "torch.OutOfMemoryError"}

    error = outcome_errors.exception_of({"kind": "raised", "exception": facts, "stage": "function"}, None, PLACE)

    assert type(error) is errors.FunctionError and "a smaller batch" in error.hint


def test_a_job_that_had_gpus_is_not_advised_to_ask_for_one():
    error = RuntimeError("No CUDA GPUs are available")
    about, data = written(exceptions.to_records(error))
    facts = {"kind": "raised", "value": about, "exception": exceptions.summary(error)}

    told = outcome_errors.exception_of({**facts, "usage": {"gpus": [{"uuid": "GPU-1"}]}}, data, PLACE)

    assert told.__notes__ == ["the job had GPUs: `clusterfn check tensor01 --gpus 1` shows why PyTorch cannot use them"]


def test_bytes_of_the_functions_own_that_name_a_gpu_are_answered_with_what_to_do():
    error = broken_by(RuntimeError("Attempting to deserialize object on a CUDA device but torch.cuda.is_available()"))

    assert ".cpu()" in error.hint


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: no CUDA-capable device is detected"),
        OSError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"),
    ],
)
def test_a_value_that_needs_a_gpu_here_is_answered_with_what_to_return(error):
    assert broken_by(error).hint.startswith("this machine has no GPU for it: return it in main memory")


class Refuses:
    """Raises when it is loaded."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return _refuse, (self.error,)


def _refuse(error):
    raise error


def broken_by(error):
    with pytest.raises(errors.ResultError) as caught:
        returned(Refuses(error))
    return caught.value


def test_a_project_of_the_users_that_was_installed_without_e_is_not_looked_for_on_pypi(tmp_path, monkeypatch):
    info = tmp_path / "site" / "mypkg-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypkg\nVersion: 1.0\n")
    (info / "direct_url.json").write_text('{"url": "file:///home/ada/mypkg", "dir_info": {}}')
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    told = printed(missing("mypkg"))

    assert "after `pip install -e /home/ada/mypkg`, clusterfn sends it" in told
    assert "-m pip install mypkg" not in told


def test_the_last_error_of_several_attempts_names_those_before_it():
    earlier = ["attempt 1 failed: its node is gone; retried (1 of 1)"]
    published, value = written(RuntimeError("CUDA error: uncorrectable ECC error encountered"))
    published = {**published, "kind": layout.LOST, "message": "the supervisor died", "earlier": earlier}

    error = outcome_errors.exception_of(published, value, PLACE)

    assert error.message == "the supervisor died; this was the last of 2 attempts"
    assert list(error.evidence)[:1] == earlier


def test_the_hint_at_a_file_beside_the_script_names_the_jobs_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()

    error = raised(thrown(FileNotFoundError(2, "No such file or directory", "models")))

    assert error.strerror == (
        "No such file or directory in the job's own folder on tensor01; it is in your working directory: "
        "pass clusterfn.Directory('models') as an argument"
    )


@pytest.mark.parametrize("facts", [{}, {"exception": None}, {"exception": {"type": "mod.Odd"}}])
@pytest.mark.parametrize("value", [None, bytearray(), bytearray(b"nonsense")])
def test_an_exception_of_which_little_is_left_is_a_function_error(facts, value):
    got = outcome_errors.exception_of({"kind": "raised", "message": "mod.Odd: text", **facts}, value, PLACE)

    assert type(got) is errors.FunctionError and "the function raised" in str(got)


def test_sys_exit_without_a_status_is_reported_with_what_to_write_instead():
    got = raised(thrown(SystemExit()))

    assert got.message == "the function raised SystemExit"
    assert got.hint == "return to end the function early; raise an exception to report a failure"


def test_a_remote_traceback_names_the_cell_of_the_notebook():
    shell = InteractiveShell.instance()
    try:
        file = shell.compile.cache("def f(): 1 / 0", 6)
        text = f'Traceback:\n  File "{file}", line 2, in f\n  File "/opt/x.py", line 3, in g\n'

        told = outcome.name_files_as_here(text)
    finally:
        InteractiveShell.clear_instance()
    assert told == 'Traceback:\n  Cell In[6], line 2, in f\n  File "/opt/x.py", line 3, in g\n'


def missing(
    module: str,
    error: BaseException | None = None,
    kind: str = "raised",
    python: str = "/opt/ml/bin/python",
    version: str = "",
) -> BaseException:
    """What the caller gets when a module is missing in the environment."""
    error = thrown(error or ModuleNotFoundError(f"No module named {module!r}", name=module))
    about, data = written(exceptions.to_records(error))
    facts = {**exceptions.summary(error), "missing": {"module": module, "python": python, "version": version}}
    return outcome_errors.exception_of({"kind": kind, "value": about, "exception": facts, "message": "m"}, data, PLACE)


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, None))


@pytest.mark.parametrize(("module", "package"), [("numpy", "numpy"), ("yaml", "pyyaml")])
def test_a_module_that_the_environment_lacks_is_to_be_installed_there(module, package):
    error = missing(module)

    assert (type(error), error.args, error.name) == (ModuleNotFoundError, (f"No module named {module!r}",), module)
    assert (
        f"No module named {module!r} in /opt/ml/bin/python on tensor01: "
        f"install it on the host (/opt/ml/bin/python -m pip install {package})"
    ) in printed(error)


def test_a_module_in_a_folder_below_is_not_to_be_installed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").touch()

    told = printed(missing("mine"))

    assert "lib/mine.py is on this machine" in told and "add lib to PYTHONPATH or sys.path here" in told
    assert "pip install" not in told


def test_missing_metadata_of_a_package_is_not_reported_as_a_missing_module():
    refused = PackageNotFoundError("mypkg")
    facts = {**exceptions.summary(refused), "missing": {"module": "mypkg", "python": "/p/python", "metadata": True}}

    error = outcome_errors.exception_of({"kind": "payload", "exception": facts, "message": "m"}, None, PLACE)

    assert error.hint.startswith("/p/python on tensor01 has no metadata of mypkg: install mypkg there")
    assert "pip install -e ." in error.hint


MADE = "/home/ann/.clusterfn/envs/f715bb8dda3a37296bca/bin/python"
SYSTEM = "/usr/bin/python3.11"


@pytest.mark.parametrize(
    ("module", "more", "says", "hides"),
    [
        ("rich", {"kind": "payload", "python": MADE}, ["add rich to environment.yml or packages=[…], and call again"],
         "pip install"),
        ("torch", {"kind": "payload", "python": SYSTEM}, [f"{SYSTEM} -m venv ~/v", "packages=['torch']"],
         f"{SYSTEM} -m pip"),
        ("xml", {}, ["use an environment with Python {}.{}".format(*sys.version_info[:2])], "pip install"),
    ],
    ids=["an environment that was made", "the system's Python", "a module that another Python has no longer"],
)  # fmt: skip
def test_nobody_is_advised_to_install_where_that_would_not_help(module, more, says, hides):
    told = printed(missing(module, **more))

    assert [part for part in says if part not in told] == [] and hides not in told


def test_a_missing_part_of_a_package_is_a_matter_of_versions():
    numpy = pytest.importorskip("numpy")

    said = printed(missing("numpy.nowhere", version="1.26.4"))

    assert f"has no numpy.nowhere: it is 1.26.4 there, and {numpy.__version__} on this machine" in said


def test_an_own_module_that_did_not_travel_is_not_to_be_installed(tmp_path, monkeypatch):
    (tmp_path / "stayed_here.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    text = printed(missing("stayed_here"))

    assert "write `import stayed_here` in the function" in text and "pip install" not in text


@pytest.mark.parametrize("name", ["built_here", "built_here.fast"])
def test_a_compiled_module_of_ones_own_is_to_be_installed_there(tmp_path, monkeypatch, name):
    (tmp_path / "built_here").mkdir()
    (tmp_path / "built_here/__init__.py").touch()
    (tmp_path / "built_here/fast.abi3.so").touch()
    monkeypatch.syspath_prepend(tmp_path)
    module_sources.collect(["built_here"])[0]

    text = printed(missing(name))

    assert "built_here is your own, and is not sent, because fast.abi3.so is compiled" in text and "pip install" in text


@pytest.mark.parametrize("error", [EOFError("EOF when reading a line"), bdb.BdbQuit()])
def test_who_asks_the_keyboard_learns_that_there_is_none(error):
    assert "a job has no keyboard" in printed(raised(thrown(error)))


def test_a_note_of_the_functions_own_stays():
    error = ModuleNotFoundError("No module named 'numpy'", name="numpy")
    error.__notes__ = ["mine"]

    assert missing("numpy", error).__notes__[0] == "mine"


def wrong_name():
    return itar  # noqa: F821


def test_no_name_of_the_catching_frame_is_suggested():
    with pytest.raises(NameError) as there:
        wrong_name()
    got = raised(there.value)

    assert str(got) == "name 'itar' is not defined"
    assert getattr(got, "name", None) is None  # what Python makes its suggestion from
