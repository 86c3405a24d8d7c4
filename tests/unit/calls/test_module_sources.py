"""Which modules are the user's own, and what of them travels."""

from __future__ import annotations

import fractions
import importlib
import importlib.machinery
import importlib.util
import json
import py_compile
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from clusterfn.calls import call
from clusterfn.errors import PayloadError
from clusterfn.hosts import serialization
from clusterfn.packing import module_sources, own_modules
from clusterfn.packing.files import Directory, shipment
from clusterfn.packing.payload import Payload, imports_of
from tests.sent import prepared
from tests.unit.calls.own_project import sent, write

PAYLOAD = Payload(b"", {}, None, (), ())


@pytest.mark.parametrize("files", [["run-1/files/code/train.py", "log.txt"], ["cats/1.png"], ["__pycache__/x.py"], []])
def test_a_folder_without_a_module_in_it_is_none(project, files):
    (project / "mine").mkdir()
    for file in files:
        (project / "mine" / file).parent.mkdir(parents=True, exist_ok=True)
        (project / "mine" / file).touch()

    assert sent("mine") == set()
    assert not own_modules.is_own("mine")


METADATA = "Metadata-Version: 2.1\nName: my-pkg\nVersion: 1.2.3\n"
SCRIPTS = "[console_scripts]\nmine = mine_pkg:main\n"
ASKS = """
import sys
sys.path.insert(0, sys.argv[1])
import importlib.metadata, mine_pkg
print(mine_pkg.__version__, [each.value for each in importlib.metadata.distribution("my-pkg").entry_points])
"""


def project_with_metadata(tmp_path: Path, code: str, metadata: str, editable: bool, top_level: bool) -> list[Path]:
    """A project of the user's own, installed as a tool does it; the folders that are then on sys.path."""
    write(tmp_path / code, mine_pkg__init="from importlib.metadata import version\n__version__ = version('my-pkg')")
    where = tmp_path / metadata
    where.mkdir(parents=True)
    (where / ("PKG-INFO" if metadata.endswith(".egg-info") else "METADATA")).write_text(METADATA)
    (where / "entry_points.txt").write_text(SCRIPTS)
    (where / "RECORD").write_text("")
    if editable:
        url = (tmp_path / "my project").as_uri()
        (where / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))
    if top_level:
        (where / "top_level.txt").write_text("mine_pkg\n")
    return [tmp_path / code, where.parent]


@pytest.mark.parametrize(
    ("code", "metadata", "editable", "top_level"),
    [
        ("my project/src", "venv/site-packages/my_pkg-1.2.3.dist-info", True, False),
        ("my project", "venv/site-packages/my_pkg-1.2.3.dist-info", True, True),
        ("my project", "venv/site-packages/my_pkg-1.2.3.dist-info", False, True),
        ("my project/src", "my project/src/my_pkg.egg-info", False, True),
        ("my project", "my project/my_pkg.egg-info", False, True),
    ],
    ids=["poetry, hatch or uv, src", "setuptools or its scm, flat", "installed, too", "develop, src", "develop, flat"],
)
def test_a_package_can_ask_for_its_own_version_where_it_arrives(
    tmp_path, monkeypatch, code, metadata, editable, top_level
):
    for folder in project_with_metadata(tmp_path, code, metadata, editable, top_level):
        monkeypatch.syspath_prepend(str(folder))

    files = module_sources.collect(["mine_pkg"])[0].files

    name = Path(metadata).name
    assert {each.rpartition("/")[2] for each in files if each.startswith(name)} < {
        "METADATA", "PKG-INFO", "entry_points.txt", "top_level.txt"
    }  # fmt: skip
    for each, data in files.items():
        (tmp_path / "there" / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / each).write_bytes(data)
    asked = [sys.executable, "-I", "-S", "-c", ASKS, str(tmp_path / "there")]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.stdout == "1.2.3 ['mine_pkg:main']\n", done.stderr


def test_metadata_of_others_and_of_a_damaged_installation_stays(tmp_path, project, monkeypatch):
    write(project, mine="")
    for name, told in zip("abcde", ("", "{", "[]", '{"dir_info": {"editable": true}}', '{"url": 3}')):
        (tmp_path / f"{name}-1.dist-info").mkdir()
        (tmp_path / f"{name}-1.dist-info" / "METADATA").write_text(METADATA)
        (tmp_path / f"{name}-1.dist-info" / "direct_url.json").write_text(told)

    assert sent("mine") == {"mine.py"}


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

    assert sent("mine") == {"mine/__init__.py"}
    call.tell_left_out(PAYLOAD)
    call.tell_left_out(PAYLOAD)
    told = capsys.readouterr().err
    assert told.count("not sent, because they look like keys or passwords") == 1 and f"{project}/mine/{name}. " in told


def test_a_large_data_file_of_a_package_does_not_travel_and_is_named_once(project, capsys):
    write(project, mine__init="")
    (project / "mine" / "table.bin").write_bytes(bytes((1 << 20) + 1))
    (project / "mine" / "small.bin").write_bytes(bytes(1 << 20))

    assert sent("mine") == {"mine/__init__.py", "mine/small.bin"}
    call.tell_left_out(PAYLOAD)
    call.tell_left_out(PAYLOAD)
    told = capsys.readouterr().err
    assert told.count("are limited to 1 MB") == 1 and f"{project}/mine/table.bin. To send one, pass" in told


def test_a_key_in_a_directory_argument_is_sent_and_named_once(project, capsys):
    (project / "data").mkdir()
    (project / "data" / ".env").touch()
    payload = PAYLOAD._replace(shipments=(shipment(Directory(project / "data")),))
    call.tell_left_out(PAYLOAD)  # what an earlier test has left out
    capsys.readouterr()

    call.tell_left_out(payload)
    call.tell_left_out(payload)
    assert capsys.readouterr().err == (
        f"clusterfn: {project}/data/.env looks like a key or a password, and is sent with its Directory\n"
    )


def test_a_namespace_package_is_sent_from_all_its_folders_and_the_first_wins(project, monkeypatch, tmp_path_factory):
    second = tmp_path_factory.mktemp("second")
    write(second, spread__a="SECOND = 1", spread__b="")
    write(project, spread__a="FIRST = 1")
    monkeypatch.setattr(sys, "path", [str(project), str(second), *sys.path[1:]])

    assert sent("spread") == {"spread/a.py", "spread/b.py"}
    assert module_sources.collect(["spread"])[0].files["spread/a.py"] == b"FIRST = 1"


@pytest.mark.parametrize(
    "name",
    [
        "json",
        "sys",
        "pytest",
        "clusterfn.packing.files",
        "_clusterfn_wire.stand_ins",
        "cloudpickle",
        "__main__",
        "none",
        "",
    ],  # fmt: skip
)
def test_what_is_there_already_does_not_travel(name):
    serialization.part("stand_ins")
    assert not own_modules.is_own(name)


def test_a_folder_named_like_a_module_of_the_standard_library_travels_if_it_is_imported(project):
    write(project, pipes2="import profile", profile__init="MINE = 1", json__data="")
    sys.modules.pop("profile", None)

    assert sent("pipes2") == {"pipes2.py", "profile/__init__.py"}
    assert not own_modules.is_own("json")


def test_the_place_of_an_installed_module_is_looked_up_once(monkeypatch):
    assert not own_modules.is_own("colorsys")

    monkeypatch.setattr(own_modules.os.path, "realpath", lambda path: pytest.fail(f"it asks for {path}"))
    assert not own_modules.is_own("colorsys")


def test_an_installed_package_that_becomes_a_link_to_ones_own_travels_from_then_on(tmp_path, monkeypatch):
    write(tmp_path, **{"site-packages/linked/__init__": "", "checkout/linked/__init__": ""})
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    assert not own_modules.is_own("linked")

    shutil.rmtree(tmp_path / "site-packages/linked")
    (tmp_path / "site-packages/linked").symlink_to(tmp_path / "checkout/linked")
    assert own_modules.is_own("linked")
    (tmp_path / "site-packages/linked").unlink()
    write(tmp_path, **{"site-packages/linked/__init__": ""})
    assert not own_modules.is_own("linked")


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

    bundle, left = module_sources.collect(["mine"])

    assert (set(bundle.files) if bundle else set()) == remain
    assert [each.name for each in left] == compiled and {each.folder for each in left} == {project}
    assert left == module_sources.compiled_in("mine")


def test_a_huge_folder_is_left_as_soon_as_it_is_too_large(project, monkeypatch):
    monkeypatch.setattr(module_sources, "MAX_ALL_BYTES", 1000)
    write(project, mine__init="")
    for number in range(300):
        (project / f"mine/{number}.dat").write_bytes(b"x" * 100)
    looked: list[Path] = []
    monkeypatch.setattr(own_modules, "travels", lambda path: not looked.append(path))

    with pytest.raises(PayloadError):
        sent("mine")
    assert len(looked) < 20


def test_a_module_edited_since_its_import_is_reported_once(project):
    write(project, mine_a="A = 1")
    importlib.import_module("mine_a")
    assert own_modules.edited(["mine_a"]) == []

    write(project, mine_a="A = 22")

    assert own_modules.edited(["mine_a"]) == ["mine_a"]
    assert own_modules.edited(["mine_a"]) == []


def test_an_edit_before_the_first_call_is_reported(project, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(project, mine_a="A = 1")
    importlib.import_module("mine_a")

    write(project, mine_a="A = 22")

    assert own_modules.edited(["mine_a"]) == ["mine_a"]
    assert own_modules.edited(["mine_a"]) == []


def test_a_module_that_was_reloaded_is_not_reported(project, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(project, mine_a="A = 1")
    module = importlib.import_module("mine_a")
    own_modules.edited(["mine_a"])

    write(project, mine_a="A = 22")
    importlib.invalidate_caches()
    importlib.reload(module)

    assert own_modules.edited(["mine_a"]) == []


def test_an_old_byte_code_file_says_nothing_where_none_is_written(project, monkeypatch):
    write(project, mine_a="A = 1")
    py_compile.compile(str(project / "mine_a.py"))
    write(project, mine_a="A = 22")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.import_module("mine_a")

    assert own_modules.edited(["mine_a"]) == []


def test_modules_that_were_never_imported_are_never_edited(project):
    write(project, mine_a="")

    assert own_modules.edited(["mine_a", "not_there"]) == []


def test_the_names_of_what_travels(project):
    write(project, mine__init="", mine__deep__x="", mine_a="import mine")

    assert module_sources.modules_in(module_sources.collect(["mine_a"])[0]) == ["mine", "mine.deep.x", "mine_a"]


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
    monkeypatch.setattr(own_modules, "is_own", lambda name: asked.append(name))

    prepared(len, ([fractions.Fraction(number) for number in range(1000)],))

    assert sorted(asked) == ["abc", "builtins", "fractions"]
