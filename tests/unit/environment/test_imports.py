"""Without a specification: what is imported, at which version it is installed, and what is not listed."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from clusterfn import EnvironmentBuildError, LockError
from clusterfn.config.spec import Host
from clusterfn.environment import existing, packages
from clusterfn.hosts.environment_choice import EnvironmentRequest, EnvironmentResolver
from clusterfn.packing import code_facts


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
