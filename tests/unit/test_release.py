"""What a release consists of agrees with itself: metadata, description, recipe, citation and workflows."""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import clusterfn

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LINK = re.compile(r"\]\(([^)\s]+)\)|\bsrc=\"([^\"]*)\"")


@pytest.fixture(scope="module")
def metadata() -> configparser.ConfigParser:
    read = configparser.ConfigParser()
    read.read(ROOT / "setup.cfg", encoding="utf-8")
    return read


@pytest.fixture(scope="module")
def setup_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def links(text: str) -> list[str]:
    return [a or b for a, b in LINK.findall(re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))]


@pytest.mark.parametrize("source", ["", "https://example.org/clusterfn/blob/main/"])
def test_no_link_of_the_description_on_an_index_leads_nowhere(setup_script, source):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert any("://" not in link for link in links(readme)), "then this test sees nothing"

    shown = setup_script.description(readme, source)

    assert [link for link in links(shown) if not link.startswith(("https://", "http://", "mailto:"))] == []
    assert shown.count("```") == readme.count("```")
    assert len(links(shown)) >= (len(links(readme)) // 2 if source else 0)


def test_links_and_images_of_a_description_become_text_or_absolute(setup_script):
    readme = (
        '[`a [b]`](docs/a.md#b) [c](https://x.org) [d](#top) ![p](docs/p.svg) <img src="docs/q.svg">\n'
        "```\n[e](f)\n```\n"
    )

    assert setup_script.description(readme, "").startswith("`a [b]` [c](https://x.org) d  \n```\n[e](f)\n```\n")
    assert setup_script.description(readme, "https://s.org/") == (
        "[`a [b]`](https://s.org/docs/a.md#b) [c](https://x.org) d ![p](https://s.org/docs/p.svg?raw=true) \n"
        "```\n[e](f)\n```\n"
    )


def test_each_promised_python_has_a_classifier_and_a_job(metadata):
    classifiers = lines(metadata["metadata"]["classifiers"])
    minors = re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))
    (check,) = (yaml.safe_load(path.read_text()) for path in WORKFLOWS if path.name == "check.yml")

    assert check["jobs"]["package"]["strategy"]["matrix"]["python"] == minors
    assert metadata["options"]["python_requires"] == f">={minors[0]}"
    assert not any(line.startswith("License ::") for line in classifiers)  # an index rejects it beside the expression


def test_each_make_target_and_file_of_a_workflow_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    run = [
        step["run"]
        for path in WORKFLOWS
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    made = re.findall(r"^make ([a-z-]+)", "\n".join(run), re.MULTILINE)

    assert {"check", "test", "dist"} <= set(made) <= targets


def test_all_files_of_a_release_have_its_version(metadata):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert citation["version"] == clusterfn.__version__ == recipe()["package"]["version"]
    assert citation["license"] == metadata["metadata"]["license_expression"] == recipe()["about"]["license"]
    assert re.search(rf"^## {re.escape(clusterfn.__version__)}\b", changes, re.MULTILINE)


RECIPE = (ROOT / "packaging" / "conda-forge" / "recipe" / "recipe.yaml").read_text(encoding="utf-8")


def recipe() -> dict[str, Any]:
    """The conda-forge recipe, with its variables put in."""
    context = yaml.safe_load(RECIPE)["context"]
    return yaml.safe_load(re.sub(r"\$\{\{ (\w+)(?:\[0\])? \}\}", lambda found: context.get(found[1], found[1]), RECIPE))


def test_the_builder_of_conda_packages_takes_the_recipe_which_has_what_its_index_asks_for():
    """conda-smithy, which checks more, is not on the package index; its linter was run by hand."""
    builder = pytest.importorskip("rattler_build", reason="py-rattler-build is not installed")
    stage = builder.Stage0Recipe.from_yaml(RECIPE.replace("SHA256-OF-THE-SDIST", "0" * 64))

    (variant,) = stage.render(builder.VariantConfig(), builder.RenderConfig())

    said = variant.recipe.to_dict()
    assert said["requirements"]["run"] == recipe()["requirements"]["run"]
    parts = "schema_version context package source build requirements tests about extra"
    assert [*yaml.safe_load(RECIPE)] == parts.split()
    assert {"homepage", "summary", "description", "license", "license_file"} <= said["about"].keys()
    assert len(said["extra"]["recipe-maintainers"]) > 0


def test_the_recipe_needs_what_the_package_needs(metadata):
    needed = {line.replace(" ", "") for line in recipe()["requirements"]["run"]}

    # A recipe for all Pythons has no markers, and py-rattler needs Python 3.10.
    required = {line.partition(";")[0] for line in lines(metadata["options"]["install_requires"])}
    assert needed == {*required, "python>=3.10"}
    # Python 3.9 and 3.10 have no reader of a project file.
    assert 'tomli>=2; python_version < "3.11"' in lines(metadata["options"]["install_requires"])
    assert recipe()["build"]["python"]["entry_points"] == lines(metadata["options.entry_points"]["console_scripts"])


def test_no_paramiko_is_installed_that_is_newer_than_that_of_the_tests(metadata):
    """A new major version has broken programs."""
    (bound,) = re.findall(r"^paramiko>=[\d.]+,<(\d+)$", metadata["options"]["install_requires"], re.MULTILINE)

    assert version("paramiko").startswith(f"{int(bound) - 1}.")


def test_each_test_that_the_page_of_what_was_verified_names_exists():
    text = (ROOT / "docs" / "explanation" / "verified.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`", text)

    assert len(named) > 20 and [name for name in named if not (ROOT / name).is_file()] == []


def test_a_module_that_is_skipped_or_broken_hides_no_failure_from_the_report(tmp_path):
    (tmp_path / "test_skipped.py").write_text("import pytest\npytest.skip('no', allow_module_level=True)\n")
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    options = ["-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c"]
    argv = [sys.executable, *options, os.devnull, tmp_path]

    ran = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=150)

    lines = ran.stdout.splitlines()
    assert "0 tests run, 1 skipped, 0 marked flaky" in lines
    assert any(line.startswith("ERROR ") and "test_broken.py" in line for line in lines)
