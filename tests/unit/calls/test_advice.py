"""What an exception that a caller gets says of modules, files, GPUs and keyboards, besides its own words."""

from __future__ import annotations

import bdb
import concurrent.futures
import os
import pickle
import sys
import types
from pathlib import Path

import pytest

from clusterfn import FunctionError
from tests.unit.calls.received import broken_by, missing, printed, raised, thrown


class Abandoned(concurrent.futures.CancelledError):
    """As `s3transfer.exceptions.FatalError`."""


def test_an_error_of_a_library_that_is_a_cancellation_arrives_as_its_type_and_a_bare_one_does_not():
    assert type(raised(Abandoned("x"))) is Abandoned
    assert type(raised(concurrent.futures.CancelledError("x"))) is FunctionError


def test_an_exception_that_counts_as_false_keeps_its_place():
    class Empty(Exception):
        def __len__(self):
            return 0

    error = ValueError("why")
    error.__cause__ = Empty()

    assert type(raised(thrown(error)).__cause__) is Empty


def test_the_hint_at_a_file_that_is_only_here(tmp_path):
    (tmp_path / "x.csv").touch()

    error = raised(thrown(FileNotFoundError(2, "No such file or directory", str(tmp_path / "x.csv"))))

    assert "on tensor01; it is on this machine: pass clusterfn.File(" in str(error) and error.errno == 2


@pytest.mark.parametrize(
    "words",
    [
        ("No such file or directory (os error 2): {}",),
        ("[Errno 2] Failed to open local file '{}'. Detail: [errno 2] No such file or directory",),
        (2, "Unable to synchronously open file (unable to open file: name = '{}', errno = 2, flags = 0)"),
    ],
)
def test_the_hint_at_a_file_that_a_library_names_only_in_its_words(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    error = thrown(FileNotFoundError(*(str(each).format("x.h5") if each != 2 else 2 for each in words)))
    assert "clusterfn.File(" not in printed(raised(error))

    (tmp_path / "x.h5").touch()

    hint = "not in the job's own folder on tensor01; it is in your working directory: pass clusterfn.File('x.h5')"
    assert hint in printed(raised(error))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("No pairs found in data/real and data/synth"), "pass clusterfn.Directory('data/real')"),
        (RuntimeError("Found 0 files in subfolders of: ./data/real/"), "pass clusterfn.Directory('./data/real/')"),
        (AssertionError("data/x.csv is empty"), "pass clusterfn.File('data/x.csv')"),
        (ValueError("a b: x.csv is 'data' .. / ../ ./ {here}/data 1/2"), ""),
    ],
)
def test_the_hint_at_a_path_that_an_exception_of_the_program_names(tmp_path, monkeypatch, error, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/real").mkdir(parents=True)
    for name in ("x.csv", "data/x.csv"):
        (tmp_path / name).touch()

    shown = printed(raised(thrown(type(error)(str(error).format(here=tmp_path)))))
    assert said in shown and ("pass clusterfn." in shown) == bool(said)


def test_the_hint_at_a_file_of_this_home_that_nobody_there_may_look_at(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "x.csv").touch()

    assert "clusterfn.File(" in str(raised(thrown(PermissionError(13, "Permission denied", str(tmp_path / "x.csv")))))
    assert "clusterfn.File(" not in str(raised(thrown(PermissionError(13, "Permission denied", os.devnull))))


def test_an_object_of_the_script_that_only_a_pickle_names_is_said_to_have_stayed(monkeypatch):
    script = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    with pytest.raises(AttributeError) as error:
        pickle.loads(b"c__main__\nKept\n.")
    assert "clusterfn sends only" not in printed(raised(error.value))

    script.Kept = object()

    assert "that the code of the call names: write Kept in the function too" in printed(raised(error.value))


@pytest.mark.parametrize("error", [KeyError("Kept"), NameError("name 'Kept' is not defined"), AttributeError("Kept")])
def test_a_missing_key_is_not_taken_for_an_object_of_the_script(monkeypatch, error):
    monkeypatch.setattr(sys.modules["__main__"], "Kept", object(), raising=False)

    assert "clusterfn sends only" not in printed(raised(thrown(error)))


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


NO_GPU = "this machine has no GPU for it: return it in main memory"
SAVED = "the function saved tensors of a GPU itself: call .cpu() before saving"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (RuntimeError("Attempting to deserialize object on a CUDA device but torch.cuda.is_available()"), SAVED),
        (RuntimeError("CUDA error: no CUDA-capable device is detected"), NO_GPU),
        (OSError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"), NO_GPU),
    ],
)
def test_a_value_that_needs_a_gpu_here_is_answered_with_what_to_return(error, hint):
    assert broken_by(error).hint.startswith(hint)


def test_a_project_of_the_users_that_was_installed_without_e_is_not_looked_for_on_pypi(tmp_path, monkeypatch):
    info = tmp_path / "site" / "mypkg-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypkg\nVersion: 1.0\n")
    (info / "direct_url.json").write_text('{"url": "file:///home/ada/mypkg", "dir_info": {}}')
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    told = printed(missing("mypkg"))

    assert "after `pip install -e /home/ada/mypkg`, clusterfn sends it" in told
    assert "-m pip install mypkg" not in told


def test_the_hint_at_a_file_beside_the_script_names_the_jobs_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()

    error = raised(thrown(FileNotFoundError(2, "No such file or directory", "models")))

    assert error.strerror == (
        "No such file or directory in the job's own folder on tensor01; it is in your working directory: "
        "pass clusterfn.Directory('models') as an argument"
    )


def test_sys_exit_without_a_status_is_reported_with_what_to_write_instead():
    got = raised(thrown(SystemExit()))

    assert got.message == "the function raised SystemExit"
    assert got.hint == "return to end the function early; raise an exception to report a failure"


@pytest.mark.parametrize(("module", "package"), [("numpy", "numpy"), ("yaml", "pyyaml")])
def test_a_module_that_the_environment_lacks_is_to_be_installed_there(module, package):
    error = missing(module)

    assert (type(error), error.args, error.name) == (ModuleNotFoundError, (f"No module named {module!r}",), module)
    assert (
        f"No module named {module!r} in /opt/ml/bin/python on tensor01: "
        f"install it on the host (/opt/ml/bin/python -m pip install {package})"
    ) in printed(error)


@pytest.mark.parametrize("place", ["lib/mine.py", "../src/mine.py", "../src/mine/__init__.py", "../mine.py"])
def test_a_module_in_a_folder_near_is_not_to_be_installed(tmp_path, monkeypatch, place):
    (tmp_path / "scripts").mkdir()
    monkeypatch.chdir(tmp_path / "scripts")
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    Path(place).touch()
    folder = place.partition("/mine")[0]

    told = printed(missing("mine"))

    assert f"{folder}/mine" in told and f"add {folder} to PYTHONPATH or sys.path here" in told
    assert "pip install" not in told


MADE = "/home/ann/.clusterfn/envs/f715bb8dda3a37296bca/bin/python"
SYSTEM = "/usr/bin/python3.11"


@pytest.mark.parametrize(
    ("module", "more", "says", "hides"),
    [
        ("rich", {"kind": "payload", "python": MADE}, ["add rich to environment.yml or packages=[…], and call again"],
         "pip install"),
        ("torch", {"kind": "payload", "python": SYSTEM}, [f"{SYSTEM} -m venv ~/v", "packages=['torch']"],
         f"{SYSTEM} -m pip"),
    ],
    ids=["an environment that was made", "the system's Python"],
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
