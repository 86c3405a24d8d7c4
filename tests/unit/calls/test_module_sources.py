"""Which modules are the user's own, and what of them travels."""

from __future__ import annotations

import fractions
import importlib
import importlib.machinery
import importlib.util
import py_compile
import shutil
import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.hosts import serialization
from clusterfn.packing import notes
from clusterfn.packing.files import Directory
from clusterfn.packing.payload import imports_of
from clusterfn.packing.project import modules
from tests.sent import prepared
from tests.unit.calls.own_project import sent, write


@pytest.mark.parametrize("files", [["run-1/files/code/train.py", "log.txt"], ["cats/1.png"], ["__pycache__/x.py"], []])
def test_a_folder_without_a_module_in_it_is_none(project, files):
    (project / "mine").mkdir()
    for file in files:
        (project / "mine" / file).parent.mkdir(parents=True, exist_ok=True)
        (project / "mine" / file).touch()

    assert sent("mine") == set()
    assert not modules.is_own("mine")


PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *[(name, "x") for name in (
            ".env", ".env.local", ".netrc", "_netrc", ".pypirc", "id_rsa", "id_ed25519", "credentials", "secrets.yaml",
            "credentials.json", "service-account-7.json", "client_secret_1.json", "store.P12",
        )],
        ("server.key", PRIVATE), ("mine.pem", "# of mine\n-----BEGIN RSA PRIVATE KEY-----\n"),
    ],
)  # fmt: skip
def test_a_key_or_a_password_in_a_package_does_not_travel_and_is_named_once(project, capsys, name, content):
    write(project, mine__init="")
    (project / "mine" / name).write_text(content)

    assert sent("mine") == sent("mine") == {"mine/__init__.py"}
    told = capsys.readouterr().err
    assert told.count("not sent, because it looks like a key or a password") == 1 and f"{project}/mine/{name}: " in told


def test_a_key_in_a_directory_argument_is_sent_and_named_once(project, capsys):
    (project / "data").mkdir()
    (project / "data" / ".env").touch()
    job: Any = SimpleNamespace(host=SimpleNamespace(setup=(), prolog=()), env={}, secrets={})
    for _ in range(2):
        notes.tell(prepared(len, (Directory(project / "data"),)).notes, job, is_in_place=False)
    assert capsys.readouterr().err == (
        f"clusterfn: {project}/data/.env looks like a key or a password, and is sent with its Directory\n"
    )


@pytest.mark.parametrize(
    "name",
    ["json", "sys", "pytest", "clusterfn.packing.files", "_clusterfn_wire.stand_ins", "cloudpickle", "__main__", "none",
     ""],
)  # fmt: skip
def test_what_is_there_already_does_not_travel(name):
    serialization.part("stand_ins")
    assert not modules.is_own(name)


def test_a_folder_named_like_a_module_of_the_standard_library_travels_if_it_is_imported(project):
    write(project, pipes2="import profile", profile__init="MINE = 1", json__data="")
    sys.modules.pop("profile", None)

    assert sent("pipes2") == {"pipes2.py", "profile/__init__.py"}
    assert not modules.is_own("json")


def test_the_place_of_an_installed_module_is_looked_up_once(monkeypatch):
    assert not modules.is_own("colorsys")

    monkeypatch.setattr(modules.os.path, "realpath", lambda path: pytest.fail(f"it asks for {path}"))
    assert not modules.is_own("colorsys")


def test_an_installed_package_that_becomes_a_link_to_ones_own_travels_from_then_on(tmp_path, monkeypatch):
    write(tmp_path, **{"site-packages/linked/__init__": "", "checkout/linked/__init__": ""})
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    assert not modules.is_own("linked")

    shutil.rmtree(tmp_path / "site-packages/linked")
    (tmp_path / "site-packages/linked").symlink_to(tmp_path / "checkout/linked")
    assert modules.is_own("linked")
    (tmp_path / "site-packages/linked").unlink()
    write(tmp_path, **{"site-packages/linked/__init__": ""})
    assert not modules.is_own("linked")


@pytest.mark.parametrize(
    ("files", "remain", "compiled"),
    [
        (["mine/__init__.py", "mine/deep/fast{so}", "mine/x.py"], set(), ["mine"]),
        (["mine{so}"], set(), ["mine"]),
        (["mine/a/__init__.py", "mine/a/_core.abi3.so", "mine/b.py"], {"mine/b.py"}, ["mine.a"]),
        (["mine/fast{so}", "mine/b.py"], {"mine/b.py"}, ["mine.fast"]),
        (["mine/a/b/__init__.py", "mine/a/b/c/f.pyd", "mine/a/d/__init__.py"], {"mine/a/d/__init__.py"}, ["mine.a.b"]),
    ],
    ids=["a package", "a module", "of a namespace", "a module of a namespace", "of a deeper namespace"],
)  # fmt: skip
def test_what_has_a_compiled_extension_is_left_out_and_named(project, files, remain, compiled):
    for file in files:
        path = project / file.format(so=".cpython-311-x86_64-linux-gnu.so")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import mine_dependency" if path.suffix == ".py" else "")

    bundle, left = modules.collect(["mine"])

    assert (set(bundle.files) if bundle else set()) == remain
    assert [each.name for each in left] == compiled and {each.folder for each in left} == {project}
    assert left == modules.compiled_in("mine")


def edited(name: str) -> list[str]:
    """Which modules of this one were edited since their import."""
    bundle, _ = modules.collect([name])
    return [note.text for note in notes.of_modules(bundle, (), None)] if bundle else []


def test_a_module_that_was_reloaded_is_not_reported(project, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(project, mine_a="A = 1")
    module = importlib.import_module("mine_a")
    edited("mine_a")

    write(project, mine_a="A = 22")
    importlib.invalidate_caches()
    importlib.reload(module)

    assert not edited("mine_a")


def test_an_old_byte_code_file_says_nothing_where_none_is_written(project, monkeypatch):
    write(project, mine_a="A = 1")
    py_compile.compile(str(project / "mine_a.py"))
    write(project, mine_a="A = 22")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.import_module("mine_a")

    assert not edited("mine_a")


def test_modules_that_were_never_imported_are_never_edited(project):
    write(project, mine_a="")

    assert not edited("mine_a")


def test_the_names_of_what_travels(project):
    write(project, mine__init="", mine__deep__x="", mine_a="import mine")

    assert modules.modules_in(modules.collect(["mine_a"])[0]) == ["mine", "mine.deep.x", "mine_a"]


def test_a_compiled_module_of_ones_own_is_left_to_the_environment(tmp_path, monkeypatch):
    extension = tmp_path / "fastmine.so"
    extension.touch()
    module = types.ModuleType("fastmine")
    loader = importlib.machinery.ExtensionFileLoader("fastmine", str(extension))
    module.__spec__ = importlib.util.spec_from_file_location("fastmine", extension, loader=loader)
    monkeypatch.setitem(sys.modules, "fastmine", module)

    packed = prepared(lambda: module)

    assert [each.name for each in packed.compiled] == ["fastmine"] and packed.sources is None
    assert "fastmine" in imports_of(packed)


def test_a_type_is_looked_up_once_however_many_objects_it_has(monkeypatch):
    asked = []
    monkeypatch.setattr(modules, "is_own", lambda name: asked.append(name))

    prepared(len, ([fractions.Fraction(number) for number in range(1000)],))

    assert sorted(asked) == ["abc", "fractions"]
