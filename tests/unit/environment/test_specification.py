"""What a user may write: packages=[…] and environment.yml; and what is refused, with its line."""

from __future__ import annotations

import codecs
import importlib.metadata
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from clusterfn import ConfigError, EnvironmentBuildError, LockError
from clusterfn.config import places
from clusterfn.config.environment_kinds import names_a_file, split_file
from clusterfn.config.options import parse_options
from clusterfn.config.spec import Host
from clusterfn.environment import existing, packages, resolve
from clusterfn.environment.environment_files import locate_file
from clusterfn.environment.project import admits
from clusterfn.hosts.environment_choice import EnvironmentRequest, EnvironmentResolver
from clusterfn.packing import code_facts
from tests.unit.environment.shelf import Shelf


@pytest.mark.parametrize(
    ("versions", "minors"),
    [
        (">=2.4,<2.8", [4, 5, 6, 7]), ("~=2.7.0", [7]), ("~=2.6", [6, 7, 8, 9]), ("==2.7.*", [7]), ("2.7.1", [7]),
        ("==2.7.1+cu118", [7]), ("!=2.8.*,>2.7.0,<=2.9", [7, 9]), ("<2.1", [0]), ("", list(range(10))),
    ],
)  # fmt: skip
def test_the_minor_versions_that_pip_would_take(versions: str, minors: list[int]):
    assert [minor for minor in range(10) if admits(versions, (2, minor))] == minors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pyproject.toml", ("pyproject.toml", ())),
        ("a b/pyproject.toml[gpu]", ("a b/pyproject.toml", ("gpu",))),
        ("uv.lock[gpu, group:dev]", ("uv.lock", ("gpu", "group:dev"))),
        ("a[1]/requirements.txt", ("a[1]/requirements.txt", ())),
        ("pyproject.toml[]", ("pyproject.toml", ())),
        ("a/b.YAML", ("a/b.YAML", ())),
    ],
)
def test_extras_and_groups_are_written_in_brackets(text: str, expected: tuple[str, tuple[str, ...]]):
    assert split_file(text) == expected
    assert names_a_file(text)
    assert parse_options({"environment": text}).environment == text


def test_a_kind_is_no_file():
    assert not names_a_file("conda:ml")


def test_a_file_is_looked_for_beside_the_function_then_in_the_working_directory(tmp_path: Path):
    script, here = tmp_path / "script", tmp_path / "here"
    for folder in (script, here):
        folder.mkdir()
        (folder / "both.yml").write_text("")
    (here / "environment.yml").write_text("")

    assert locate_file("both.yml", [script, here]) == script / "both.yml"
    assert locate_file("environment.yml", [script, here]) == here / "environment.yml"
    with pytest.raises(
        ConfigError, match=r"there is no enviroment.yml in .*script and .*here; did you mean environment.yml"
    ):
        locate_file("enviroment.yml", [script, here])


def test_a_file_in_the_working_directory_comes_before_one_beside_the_script(tmp_path, monkeypatch):
    script, here = tmp_path / "script", tmp_path / "here"
    for folder in (script, here):
        folder.mkdir()
        (folder / "environment.yml").write_text(f"name: {folder.name}\ndependencies: [python=3.11]\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(places, "running_script", lambda: script / "train.py")

    assert str(here) in str(resolve.read_specification("environment.yml", ()).file)
    (here / "environment.yml").unlink()
    assert str(script) in str(resolve.read_specification("environment.yml", ()).file)


def test_the_configuration_is_no_environment_to_be_meant(tmp_path: Path):
    (tmp_path / "clusterfn.yml").write_text("")
    with pytest.raises(ConfigError) as refused:
        locate_file("cluster.yml", [tmp_path])
    assert "did you mean" not in refused.value.message


FILES = {
    "requirements.txt": "# größer\r\nnumpy>=2\r\n",
    "environment.yml": "# größer\r\ndependencies:\r\n- pip:\r\n  - numpy>=2\r\n",
}


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_with_and_without_a_bom(shelf: Shelf, name: str, mark: bytes):
    (shelf.project / name).write_bytes(mark + FILES[name].encode())

    assert [each.text for each in shelf.read(name).pip] == ["numpy>=2"]


@pytest.mark.parametrize(
    "data, line", [(b"numpy\nrich # gr\xf6\xdfer\n", 2), ("numpy\n".encode("utf-16"), 1), (b"PK\3\4\0\0", 1)]
)
@pytest.mark.parametrize("name", [*FILES, "pyproject.toml"])
def test_what_is_not_text_is_refused_with_its_place(shelf: Shelf, name: str, data: bytes, line: int):
    (shelf.project / name).write_bytes(data)

    with pytest.raises(ConfigError, match=f":{line}: the file is not text in UTF-8") as caught:
        shelf.read(name)
    assert caught.value.hint == "save the file as UTF-8"


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(shelf: Shelf):
    (shelf.project / "requirements.txt").mkdir()

    with pytest.raises(ConfigError, match=r"requirements.txt cannot be read: Is a directory"):
        shelf.read("requirements.txt")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make a project known to importlib.metadata."""
    monkeypatch.syspath_prepend(str(tmp_path))
    packages.projects_by_module.cache_clear()

    def install(project: str, module: str, version: str = "1.0", direct_url: object = None, installer: str = "pip"):
        folder = tmp_path / f"{project}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n")
        (folder / "top_level.txt").write_text(f"{module}\n")
        (folder / "INSTALLER").write_text(installer)
        if direct_url:
            (folder / "direct_url.json").write_text(json.dumps(direct_url))

    yield install
    packages.projects_by_module.cache_clear()


def wanted(source: str) -> list[str]:
    return [each.text for each in packages.automatic(code_facts.of_text(source).imports, (3, 11)).pip]


def test_installed_versions_of_what_is_imported_are_wanted_and_said(installed):
    installed("Toy_Learn", "toylearn", "1.4.2")
    installed("toytorch", "toytorch", "2.7.1+cu118")
    installed("unused", "unused")

    names = code_facts.of_text("import toylearn.svm, os, mine\ndef f():\n    from toytorch import nn").imports
    spec = packages.automatic(names, (3, 11))

    assert [each.text for each in spec.pip] == ["toy-learn==1.4.2", "toytorch==2.7.1"]
    assert [each.text for each in spec.conda] == ["python=3.11"]
    assert spec.sentences == (
        "no environment is set: clusterfn builds one from your imports: Python 3.11, toy-learn 1.4.2, toytorch 2.7.1",
    )


def test_an_editable_project_is_not_listed_and_that_is_said(installed):
    installed("toyproject", "toyproject", direct_url={"url": "file:///p", "dir_info": {"editable": True}})

    spec = packages.automatic(code_facts.of_text("import toyproject").imports, (3, 11))

    assert spec.pip == ()
    assert spec.sentences[1:] == ("toyproject is editable: clusterfn sends it as source, unless it is compiled",)


def test_a_project_from_a_repository_is_left_out_aloud_but_not_one_that_conda_installed(installed):
    installed("toygit", "toygit", direct_url={"url": "https://e.org/x", "vcs_info": {"vcs": "git"}})
    installed("toyconda", "toyconda", direct_url={"url": "file:///croot/x", "dir_info": {}}, installer="conda\n")

    spec = packages.automatic(code_facts.of_text("import toygit, toyconda").imports, (3, 11))

    assert [each.name for each in spec.pip] == ["toyconda"]
    assert spec.sentences[1] == "toygit was installed from https://e.org/x, which a lock cannot name: it is skipped"


def test_imports_for_type_checkers_and_what_travels_anyway_do_not_count(installed):
    installed("toytypes", "toytypes")

    source = "from typing import TYPE_CHECKING\nimport clusterfn, cloudpickle\nif TYPE_CHECKING:\n    import toytypes\n"
    assert wanted(source) == []


def test_names_are_found_without_packages_distributions_too(installed, monkeypatch: pytest.MonkeyPatch):
    if sys.version_info >= (3, 10):
        monkeypatch.delattr(importlib.metadata, "packages_distributions")
    installed("Toy_Learn", "toylearn", "1.4.2")

    assert wanted("import toylearn, pytest") == ["pytest==" + importlib.metadata.version("pytest"), "toy-learn==1.4.2"]


def refusal(monkeypatch: pytest.MonkeyPatch, lacking: EnvironmentBuildError, *imports: str) -> EnvironmentBuildError:
    """What a call says of a host that lacks what it needs, where nothing can be locked either."""
    settings = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")
    environments = EnvironmentResolver(SimpleNamespace(settings=settings))  # type: ignore[arg-type]
    unreachable = LockError("it could not be locked: a channel cannot be reached", hint="correct your network")
    monkeypatch.setattr(environments, "resolve_existing", Mock(side_effect=lacking))
    monkeypatch.setattr(environments, "resolve_made", Mock(side_effect=unreachable))
    with pytest.raises(EnvironmentBuildError) as caught:
        environments.find(EnvironmentRequest(), imports=imports)
    return caught.value


def test_where_nothing_can_be_locked_the_hint_is_what_needs_no_lock(monkeypatch):
    lacking = EnvironmentBuildError("/usr/bin/python3.11 has no numpy", hint='environment="environment.yml"')
    minor = ".".join(map(str, sys.version_info[:2]))

    error = refusal(monkeypatch, lacking, "pytest")

    assert "none could be built: it could not be locked" in error.evidence[0]
    assert "environment.yml" not in error.hint
    assert error.hint.startswith("correct your network; or create one on the host (python")
    assert f"(python{minor} -m venv ~/v; ~/v/bin/pip install pytest)" in error.hint
    assert f"(python{minor} -m venv ~/v) and set environment=" in refusal(monkeypatch, lacking).hint


def test_without_the_python_of_the_caller_the_hint_does_not_run_it(monkeypatch):
    lacking = EnvironmentBuildError(existing.NO_PYTHON, hint='set environment="python:/opt/bin/python3"')

    hint = refusal(monkeypatch, lacking).hint

    assert hint == 'correct your network; or set environment="python:/opt/bin/python3"'
