"""What a user may write: packages=[…] and environment.yml; and what is refused, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn import ConfigError
from clusterfn.config import places
from clusterfn.config.forms import names_a_file
from clusterfn.environment import existing, resolve
from clusterfn.environment.environment_files import locate_file
from clusterfn.environment.project import admits
from clusterfn.environment.requirement_lines import RequirementLines


@pytest.mark.parametrize(
    ("versions", "minors"),
    [
        (">=2.4,<2.8", [4, 5, 6, 7]),
        ("~=2.7.0", [7]),
        ("~=2.6", [6, 7, 8, 9]),
        ("==2.7.*", [7]),
        ("==2.7.1+cu118", [7]),
        ("2.7.1", [7]),
        ("!=2.8.*,>2.7.0,<=2.9", [7, 9]),
        ("<2.1", [0]),
        ("", list(range(10))),
    ],
)
def test_the_minor_versions_that_pip_would_take(versions: str, minors: list[int]):
    assert [minor for minor in range(10) if admits(versions, (2, minor))] == minors


@pytest.mark.parametrize(("text", "is_file"), [("environment.yml", True), ("a/b.YAML", True), ("conda:ml", False)])
def test_a_file_is_distinguished_from_a_kind(text: str, is_file: bool):
    assert names_a_file(text) == is_file


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


def test_the_callers_own_interpreter_is_refused_on_another_host_with_what_to_name():
    with pytest.raises(ConfigError) as refused:
        existing.parse_existing("current", "bare")
    assert "python:/path" in (refused.value.hint or "")


def test_the_configuration_is_no_environment_to_be_meant(tmp_path: Path):
    (tmp_path / "clusterfn.yml").write_text("")
    with pytest.raises(ConfigError) as refused:
        locate_file("cluster.yml", [tmp_path])
    assert "did you mean" not in refused.value.message


def test_an_option_that_is_rejected_shows_no_password(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be locked") as caught:
        RequirementLines(tmp_path).add("--proxy=http://ada:sekret@proxy.example:80")

    assert "sekret" not in str(caught.value)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("toy==\\\n1.0\ndeep\n", ["toy==1.0", "deep"]),
        ("toy \\\n    >=1\\\n    --hash=x\n", ["toy >=1 --hash=x"]),
        ("toy \\\n# why\ndeep\n", ["toy", "deep"]),
        ("# why \\\ntoy\n", ["toy"]),
        ("toy  # why \\\nnot-read\ndeep\n", ["toy", "deep"]),
        ("deep\ntoy\\", ["deep", "toy"]),
    ],
)
def test_continued_lines_and_comments_are_read_as_pip_reads_them(tmp_path: Path, text: str, expected: list[str]):
    path = tmp_path / "requirements.txt"
    path.write_text(text)
    lines = RequirementLines(tmp_path)

    lines.read_file(path)

    assert lines.given == expected


def test_an_error_names_the_line_at_which_a_continued_one_begins(tmp_path: Path):
    path = tmp_path / "requirements.txt"
    path.write_text("deep\ntoy \\\n  --config-settings x=y\n")

    with pytest.raises(ConfigError, match=r"^requirements\.txt:2: "):
        RequirementLines(tmp_path).read_file(path)
