"""What packages=[…], environment.yml and requirements.txt mean, and what is refused, with its line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterfn import ConfigError
from tests.unit.environment.shelf import Shelf


@pytest.fixture
def from_packages(shelf: Shelf) -> Callable[..., Any]:
    return shelf.packages


@pytest.fixture
def read(shelf: Shelf) -> Callable[..., Any]:
    """environment.yml with that text, as a specification."""

    def write(text: str, name: str = "environment.yml") -> Any:
        shelf.write(text, name)
        return shelf.read(name)

    return write


@pytest.mark.parametrize(
    ("written", "conda", "pip"),
    [
        ("python=3.11", ["python=3.11"], []),
        ("Numpy>=2", ["numpy >=2"], []),
        ("pytorch=2.5.1=*cuda128*", ["pytorch=2.5.1=*cuda128*"], []),
        ("numpy[version='>=2']", ["numpy[version='>=2']"], []),
        ("bioconda::samtools=1.2", ["bioconda::samtools=1.2"], []),
        ("torch==2.7.1", [], ["torch==2.7.1"]),
        ("torch=2.7", [], ["torch==2.7.*"]),
        ("conda-forge::pytorch", ["conda-forge::pytorch"], []),
        ("pip:rich[jupyter]>=13", [], ["rich[jupyter]>=13"]),
    ],
)
def test_packages_mean(written: str, conda: list[str], pip: list[str], from_packages):
    spec = from_packages([written])

    assert [each.text for each in spec.conda] == conda
    assert [each.text for each in spec.pip] == pip


def test_channels_are_conda_forge_and_those_that_are_named(from_packages):
    assert from_packages(["numpy", "bioconda::samtools", "bioconda::bwa"]).channels == ("conda-forge", "bioconda")


def test_where_torch_comes_from_is_said(from_packages):
    assert from_packages(["torch==2.7.1", "torchvision"]).sentences == (
        "torch comes from PyPI, as a wheel (conda-forge's is conda-forge::pytorch)",
    )


@pytest.mark.parametrize("written", ["numpy; rm -rf", "=3", "pip:", "pip:a b", "pip:x @ y.tar"])
def test_what_names_no_package_is_refused(written: str, from_packages):
    with pytest.raises(ConfigError, match="is not a"):
        from_packages([written])


def test_a_choice_for_one_host_does_not_change_what_is_wanted(from_packages):
    spec = from_packages(["torch==2.7.1", "pip:rich"])
    narrowed = replace(spec, pins=("torch==2.7.*",), torch_backend="cu118")

    assert (narrowed.pip, narrowed.input_hash) == (spec.pip, spec.input_hash)
    assert spec.wheel("torch").text == "torch==2.7.1"
    assert spec.wheel("numpy") is None


@pytest.mark.parametrize("index", [["--index-url https://e.org/whl/cu118"], ["--index-url", "https://e.org/whl/cu118"]])
def test_pips_own_words_may_be_among_packages(index: list[str], from_packages):
    spec = from_packages(
        ["python=3.11", "torch", "uvicorn[standard]", *index, "--extra-index-url=https://e.org/simple"]
    )

    assert [each.text for each in spec.pip] == ["torch", "uvicorn[standard]"]
    assert spec.indexes == ("https://e.org/whl/cu118", "https://e.org/simple")
    assert spec.replaces_index
    both = from_packages(["python=3.11", "torch", "uvicorn[standard]", *(
        f"--extra-index-url {url}" for url in spec.indexes)])  # fmt: skip
    assert not both.replaces_index and both.input_hash != spec.input_hash
    with pytest.raises(ConfigError, match="--index-url has no value"):
        from_packages(["torch", "--index-url"])


def test_the_hash_is_that_of_locks_that_are_in_repositories(from_packages):
    assert from_packages(("numpy",)).input_hash == "e7b03e0cd3cd7a7d6efb3b7b4af0aaac308a08d4b0f5b71d1b4dd496a2cc207d"


def test_the_same_wishes_have_the_same_hash(from_packages):
    first, second = from_packages(["numpy>=2", "pandas"]), from_packages(["pandas", "numpy >=2"])

    assert first.input_hash == second.input_hash
    assert first.input_hash != from_packages(["numpy>=2"]).input_hash
    assert from_packages(["rich"]).input_hash != from_packages(["pip:rich"]).input_hash


def test_a_file_is_read_with_channels_selectors_and_the_pip_section(read):
    spec = read(
        "name: ml\n"
        "channels: [conda-forge, nodefaults]\n"
        "platforms: [linux-64, osx-arm64]\n"
        "dependencies:\n"
        "  - python=3.11\n"
        "  - numpy >=2  # [linux]\n"
        "  - pyobjc  # [osx]\n"
        "  - pip:\n"
        "    - --extra-index-url https://example.org/simple\n"
        "    - --find-links=wheels\n"
        "    - Rich == 13.*\n"
    )

    assert spec.channels == ("conda-forge",)
    assert [each.text for each in spec.conda] == ["python=3.11", "numpy >=2"]
    assert [(each.name, each.text) for each in spec.pip] == [("rich", "Rich == 13.*")]
    assert spec.indexes == ("https://example.org/simple",)
    assert "--find-links wheels" in spec.wheels.lines and ("", "wheels") in spec.addresses
    assert spec.wants_python
    assert not spec.exported


def test_without_channels_those_of_condarc_count(read, tmp_path: Path):
    assert read("dependencies: [numpy]").channels == ("conda-forge",)
    (tmp_path / ".condarc").write_text("channels: [our-mirror, bioconda]\n")
    assert read("dependencies: [numpy]").channels == ("our-mirror", "bioconda")


def test_a_channel_that_has_ended_is_named(read):
    (sentence,) = read("channels: [pytorch, conda-forge]\ndependencies: [pytorch]").sentences

    assert sentence.startswith("the channel pytorch has no release after PyTorch 2.5")


def test_a_prefix_makes_an_export_whose_builds_are_lifted_aloud(read):
    spec = read(
        "dependencies:\n- numpy=1.26.4=py311h64a7726_0\n- pytorch=2.5.1=*cuda*\nprefix: /Users/ada/miniconda3/envs/ml\n"
    )

    assert [each.text for each in spec.conda] == ["numpy ==1.26.4", "pytorch=2.5.1=*cuda*"]
    assert spec.exported
    assert spec.sentences == (
        "environment.yml is an export of /Users/ada/miniconda3/envs/ml (line 4): the build strings of 1 packages are "
        "dropped, their versions kept; `conda env export --from-history` writes only what you asked for",
    )


@pytest.mark.parametrize("builds", [1, 3])
def test_builds_that_were_asked_for_beside_others_stay(read, builds: int):
    asked = [f"numpy{number}=1.26.4=py311h64a7726_0" for number in range(builds)]
    spec = read("dependencies:\n" + "".join(f"- {each}\n" for each in (*asked, "six", "tqdm", "rich")))

    assert [each.text for each in spec.conda[:builds]] == asked
    assert spec.sentences == ()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("dependencis: [a]", 'environment.yml:1:1: unknown key "dependencis"; did you mean dependencies?', "keys"),
        ("dependencies: [numpy]\nvariables: {A: b}", 'environment.yml:2:1: unknown key "variables"', "env={…}"),
        ("name: ml", 'there is no "dependencies:"', "list the packages"),
        ("dependencies:\n  numpy: 2", "expected a list of packages, found a mapping", 'start each line with "- "'),
        ("dependencies:\n- numpy\n- 3.10", 'environment.yml:3:3: dependencies[1]: "3.10" is a number', "quotes"),
        ("dependencies:\n- numpy\n- '=1'", "environment.yml:3: '=1' is not a conda package", "channel::package"),
        ("dependencies: ['https://e.org/t/tk-1/a/x-1-0.conda']", "'https://e.org/t/***/a/x-1-0.conda' is not", "::"),
        ("dependencies:\n- pip:\n  - -r requirements.txt", "environment.yml:3: \"-r requirements", "by its path"),
        ("dependencies:\n- numpy  # [amd]", "environment.yml:2:3: dependencies[0]: [amd] names no system", "unix"),
        ("dependencies:\n- uvicorn[standard] >=0.12", "environment.yml:2: 'uvicorn[standard] >=0.12' has", "`pip:`"),
        ("", "is empty", "dependencies:"),
        ("dependencies: [numpy", "not YAML", ""),
    ],
)  # fmt: skip
def test_a_file_is_refused_with_its_line_and_a_hint(read, text: str, message: str, hint: str):
    with pytest.raises(ConfigError) as caught:
        read(text)

    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_requirements_txt_is_read_as_pip_reads_it(read, shelf: Shelf):
    shelf.write("", "setup.py")

    spec = read(
        "# ours\n--extra-index-url https://e.org/simple\n-f wheels\nnumpy>=2,<3  # fast\n-e .\n"
        "uvicorn[standard] \\\n  >=0.3\n",
        "requirements.txt",
    )

    assert [each.text for each in spec.pip] == ["numpy>=2,<3", "uvicorn[standard] >=0.3"]
    assert (spec.conda, spec.indexes, spec.replaces_index) == ((), ("https://e.org/simple",), False)
    assert "-f wheels" in spec.wheels.lines and ("", "wheels") in spec.addresses
    assert spec.project is not None and spec.project.kind == "requirements.txt"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("numpy\n-r more.txt", 'requirements.txt:2: "-r more.txt" names a file that is not on this', "by its path"),
        ("numpy\n-c https://e.org/limits.txt", '"-c https://e.org/limits.txt" names a file that is not', ""),
        ("# nothing", "lists no packages", ""),
        ("toy\n--index-url", "requirements.txt:2: --index-url has no value", ""),
    ],
)
def test_a_line_of_requirements_txt_that_no_lock_can_hold_is_refused_with_its_number(read, text, message, hint):
    with pytest.raises(ConfigError) as caught:
        read(text, "requirements.txt")

    assert message in caught.value.message and "sekret" not in str(caught.value)
    assert caught.value.hint and hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("toy==\\\n1.0\ndeep\n", ["toy==1.0", "deep"]),
        ("toy \\\n    >=1\\\n    --hash=x\n", ["toy >=1 --hash=x"]),
        ("toy \\\n# why\ndeep\n", ["toy", "deep"]),
        ("toy  # why \\\nnot-read\ndeep\n", ["toy", "deep"]),
        ("deep\ntoy\\", ["deep", "toy"]),
    ],
)
def test_continued_lines_and_comments_are_read_as_pip_reads_them(read, text: str, expected: list[str]):
    assert list(read(text, "requirements.txt").project.lines) == expected


FROZEN = ("`pip freeze` wrote it in a conda environment, without a version", "pip list --format=freeze")
OF_CONDA = ("is written as for conda", "conda env export --from-history")


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("numpy @ file:///croot/numpy_and_numpy_base_1682520569166/work", FROZEN),
        ("scipy@file:///work/ci_py311/scipy_1676839849213/work ; python_version > '3.8'", FROZEN),
        ("numpy=1.26.4=py311h64a7726_0", OF_CONDA),
        ("conda-forge::numpy>=2", OF_CONDA),
        ("@EXPLICIT", OF_CONDA),
        ("https://conda.anaconda.org/conda-forge/linux-64/numpy-1.26.4-py311h64a7726_0.conda#0123456789ab", OF_CONDA),
    ],
)
@pytest.mark.parametrize("name", ["requirements.txt", "environment.yml"])
def test_a_line_of_conda_among_those_of_pip_is_refused_with_how_to_export(read, name, line, answer):
    with pytest.raises(ConfigError, match=answer[0]) as caught:
        read(f"{line}\n" if name.endswith(".txt") else f'dependencies:\n- pip:\n  - "{line}"\n', name)

    assert answer[1] in (caught.value.hint or "")


def test_a_lock_can_be_named_itself(read):
    spec = read("version: 1\n", "gpu.conda-lock.yml")

    assert spec.given_lock == spec.file
    assert spec.given_lock.name == "gpu.conda-lock.yml"


@pytest.mark.parametrize("option", ["--extra-index-url ", "--extra-index-url=", "--extra-index-url   "])
def test_an_address_keeps_its_signs_and_its_password_is_not_shown(option: str, from_packages):
    address = "https://ada:dG9rZW4=@nexus.example/simple?a=b"

    spec = from_packages(["numpy", f"{option}{address}"])

    assert spec.indexes == (address,)
    assert "dG9rZW4" not in spec.title and "nexus.example" in spec.title
