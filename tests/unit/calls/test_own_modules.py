"""Which files of the user's own travel with the modules that a function imports."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn import PayloadError
from tests.unit.calls.own_project import sent, sent_files, write

PROJECTS = {
    "imports anywhere": (
        {"mine_a": "def f():\n import mine_b.c", "mine_b__init": "", "mine_b__c": "from mine_d import x", "mine_d": ""},
        {"mine_a.py", "mine_b/__init__.py", "mine_b/c.py", "mine_d.py"},
    ),
    "a folder with a module deep in it": ({"mine_a__deep__x": ""}, {"mine_a/deep/x.py"}),
    "imports in a circle": ({"mine_a": "import mine_b", "mine_b": "import mine_a"}, {"mine_a.py", "mine_b.py"}),
    "a source that cannot be parsed": ({"mine_a": "this is (not Python"}, {"mine_a.py"}),
    "code that ends the program": (
        {"mine_a": "import mine_b", "mine_b": "raise SystemExit('run')"}, {"mine_a.py", "mine_b.py"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "travels"), PROJECTS.values(), ids=PROJECTS)
def test_a_module_travels_with_all_that_it_imports_and_none_is_run(project, files, travels):
    write(project, **files)

    assert sent("mine_a") == travels
    assert "mine_a" not in sys.modules


def test_a_package_travels_whole_with_its_data(project):
    write(project, mine__init="", mine__deep__x="")
    (project / "mine/table.csv").write_text("a")
    (project / "mine/large.bin").write_bytes(bytes(2 << 20))
    for left_out in (".hg", "__pycache__", "node_modules"):
        (project / "mine" / left_out).mkdir()
        (project / "mine" / left_out / "x.py").touch()

    assert sent("mine.deep") == {"mine/__init__.py", "mine/deep/x.py", "mine/table.csv", "mine/large.bin"}


BESIDE = {
    "a file": ("open(Path(__file__).with_name('vocab.txt'))", {"vocab.txt"}),
    "a file in a folder": ("Path(__file__).parent / 'configs/b.yaml'", {"configs/b.yaml"}),
    "a path that does not depend on the module": ("open('vocab.txt')", set()),
    "a folder": ("os.listdir(os.path.join(os.path.dirname(__file__), 'configs'))", set()),
    "no file of that name": ("Path(__file__).with_name('none.csv')", set()),
    "a key": ("Path(__file__).with_name('.env'), 'secrets.json'", set()),
    "a file above": ("Path(__file__).parent / '../other.txt'", set()),
    "what git ignores": ("Path(__file__).with_name('x.pt')", set()),
}  # fmt: skip


@pytest.mark.parametrize(("expression", "travels"), BESIDE.values(), ids=BESIDE)
def test_a_file_that_a_module_names_and_looks_for_beside_itself_travels(project, expression, travels):
    write(project, mine_a=f"def f():\n return {expression}")
    subprocess.run(["git", "init", "-q", project], check=True)
    for name in ("configs/b.yaml", "vocab.txt", ".env", "secrets.json", "x.pt", "unnamed.txt", "../other.txt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")
    (project / ".gitignore").write_text("*.pt\n")

    assert sent("mine_a") == {"mine_a.py", *travels}


def test_links_of_a_package_travel_as_what_they_lead_to(project):
    write(project, mine__init="", mine__a="", shared__common__init="", shared__common__b="")
    (project / "shared/data").mkdir()
    (project / "shared/data/x.csv").write_text("a")
    (project / "mine/common").symlink_to("../shared/common")
    (project / "mine/itself").symlink_to(".")
    (project / "mine/data").symlink_to("../shared/data")
    (project / "mine/.#a.py").symlink_to("ada@laptop.4711")  # an editor has unsaved changes

    assert sent("mine") == {
        "mine/__init__.py", "mine/a.py", "mine/common/__init__.py", "mine/common/b.py", "mine/data/x.csv"
    }  # fmt: skip


def test_links_of_packages_to_each_other_end_and_those_out_of_the_users_own_stay(project):
    write(project, mine__init="", mine__a__init="", mine__b__init="", mine__x="")
    (project / "mine/a/b").symlink_to("../b")
    (project / "mine/b/a").symlink_to("../a")
    write(project, **{"lib__site-packages__numpy__init": ""})
    (project / "mine/numpy").symlink_to("../lib/site-packages/numpy")

    both = {f"mine/{each}/__init__.py" for each in ("a", "b", "a/b", "b/a")}
    assert sent("mine") == {"mine/__init__.py", "mine/x.py", *both}


@pytest.mark.parametrize("name", ["ca.pem", "a.key", ".env.example", "secrets.py", "id_rsa.pub", "tokens.json", "env"])
def test_what_only_sounds_like_a_key_travels(project, name):
    write(project, mine__init="")
    (project / "mine" / name).write_text("-----BEGIN CERTIFICATE-----\n")

    assert sent("mine") == {"mine/__init__.py", f"mine/{name}"}


def test_a_pth_file_makes_an_editable_install_ones_own(tmp_path, monkeypatch):
    write(tmp_path, source__mine_e="")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/mine.pth").write_text(f"{tmp_path / 'source'}\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    import site

    site.addsitedir(str(tmp_path / "site-packages"))

    assert sent("mine_e") == {"mine_e.py"}


def test_a_finder_of_an_editable_install_is_asked(tmp_path, monkeypatch):
    write(tmp_path, src__mine_f__init="")

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name != "mine_f":
                return None
            return importlib.util.spec_from_file_location(name, tmp_path / "src/mine_f/__init__.py")

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])

    assert sent("mine_f") == {"mine_f/__init__.py"}


SO = ".cpython-311-x86_64-linux-gnu.so"


def test_what_only_a_compiled_package_imports_is_left_out_too(project):
    write(project, mine__init="import mine_other", mine_other="", mine_script="import mine")
    (project / ".gitignore").write_text("*.so")
    (project / f"mine/fast{SO}").touch()

    assert sent("mine_script") == {"mine_script.py"}


def test_a_package_that_is_built_while_the_program_runs(project):
    write(project, mine__init="")
    assert sent("mine") == {"mine/__init__.py"}
    (project / f"mine/fast{SO}").touch()

    assert sent("mine") == set()


def test_more_than_50_mb_are_refused_with_the_largest_named(project):
    write(project, mine__init="")
    for number in range(52):
        (project / f"mine/{number}.dat").write_bytes(bytes(1 << 20))

    with pytest.raises(PayloadError, match="larger than 50 MB") as caught:
        sent("mine")
    assert any("1 MB  " in line for line in caught.value.evidence)


def test_a_namespace_package_is_sent_from_all_its_folders_and_the_first_wins(project, monkeypatch, tmp_path_factory):
    second = tmp_path_factory.mktemp("second")
    write(second, spread__a="SECOND = 1", spread__b="")
    write(project, spread__a="FIRST = 1")
    monkeypatch.setattr(sys, "path", [str(project), str(second), *sys.path[1:]])

    assert sent("spread") == {"spread/a.py", "spread/b.py"}
    assert sent_files("spread")["spread/a.py"] == b"FIRST = 1"


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

    files = sent_files("mine_pkg")

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
