"""Which files of the user's own travel with the modules that a function imports."""

from __future__ import annotations

import importlib
import sys

import pytest

from clusterfn import PayloadError
from tests.unit.calls.own_project import sent, write


def test_what_it_imports_is_sent_wherever_the_import_is(project):
    write(project, mine_a="def f():\n    import mine_b.c", mine_b__init="", mine_b__c="from mine_d import x", mine_d="")

    assert sent("mine_a") == {"mine_a.py", "mine_b/__init__.py", "mine_b/c.py", "mine_d.py"}


def test_a_folder_with_a_module_deep_in_it_is_one(project):
    write(project, mine__deep__x="")

    assert sent("mine") == {"mine/deep/x.py"}


def test_modules_that_import_each_other_end(project):
    write(project, mine_a="import mine_b", mine_b="import mine_a")

    assert sent("mine_a") == {"mine_a.py", "mine_b.py"}


def test_a_package_travels_whole_with_its_data(project):
    write(project, mine__init="", mine__deep__x="")
    (project / "mine/table.csv").write_text("a")
    (project / "mine/large.bin").write_bytes(bytes(2 << 20))
    for left_out in (".git", "__pycache__", "node_modules"):
        (project / "mine" / left_out).mkdir()
        (project / "mine" / left_out / "x.py").touch()

    assert sent("mine.deep") == {"mine/__init__.py", "mine/deep/x.py", "mine/table.csv"}


def test_links_of_a_package_travel_as_what_they_lead_to(project):
    write(project, mine__init="", mine__a="", shared__common__init="", shared__common__b="")
    (project / "shared/data").mkdir()
    (project / "shared/data/x.csv").write_text("a")
    (project / "mine/common").symlink_to("../shared/common")
    (project / "mine/itself").symlink_to(".")
    (project / "mine/data").symlink_to("../shared/data")
    (project / "mine/.#a.py").symlink_to("ada@laptop.4711")  # an editor has unsaved changes

    assert sent("mine") == {"mine/__init__.py", "mine/a.py", "mine/common/__init__.py", "mine/common/b.py"}


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
    assert any("1 MB  mine/" in line for line in caught.value.evidence)


def test_a_source_that_cannot_be_parsed_still_travels(project):
    write(project, mine_a="this is (not Python")

    assert sent("mine_a") == {"mine_a.py"}


def test_nothing_is_imported_or_run(project):
    write(project, mine_a="import mine_b", mine_b="raise SystemExit('run')")

    assert sent("mine_a") == {"mine_a.py", "mine_b.py"}
    assert "mine_a" not in sys.modules
