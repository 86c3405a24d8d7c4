"""The wheels that uv finds for a host: its glibc, machine and Python count, and what the user allows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterfn import EnvironmentBuildError, LockError
from tests.lock.conftest import sha256
from tests.unit.environment.shelf import Shelf, asked_of_uv, capabilities, download, replace_uv
from tests.unit.environment.test_found_wheels import LOCAL
from tests.unit.environment.test_repositories import asking_for_a_password

OLD_DRIVER = capabilities("470.57.02", "7.0")


def test_the_settings_of_a_workspace_find_the_wheels_of_a_member(shelf: Shelf):
    shelf.wheel("toy")
    shelf.indexes()
    shelf.write(f'[tool.uv.workspace]\nmembers = ["train"]\n{shelf.settings}')
    shelf.write(LOCAL.replace("helper", "train").format("toy") + "[tool.uv]\n", "train/pyproject.toml")

    assert shelf.found("train/pyproject.toml") == {"toy": "1.0"}


def test_an_index_that_does_not_answer_is_no_missing_solution_and_its_password_is_not_shown(shelf: Shelf):
    shelf.indexes("http://ada:sekret@127.0.0.1:9/simple")
    shelf.pyproject('"toy"')

    refused = shelf.refusal()

    assert refused.message == "pyproject.toml could not be locked: a package index cannot be reached"
    assert "127.0.0.1:9" in str(refused) and "sekret" not in str(refused)


@pytest.mark.parametrize(
    ("line", "variable", "expected"),
    [
        ("--extra-index-url https://a\n", "", True),
        ("", "", False),
        ("--extra-index-url https://a\n", "UV_EXTRA_INDEX_URL", False),
        ("-i https://a\n", "UV_INDEX", False),
    ],
)
def test_the_best_version_of_all_indexes_counts_where_a_requirements_txt_names_them_alone(
    shelf: Shelf, monkeypatch, line: str, variable: str, expected: bool
):
    asked = asked_of_uv(monkeypatch)
    if variable:
        monkeypatch.setenv(variable, "https://ours.example/simple")
    shelf.write(f"{line}toy\n", "requirements.txt")

    shelf.refusal("requirements.txt")

    assert ("unsafe-best-match" in asked[0][0]) is expected


def test_settings_of_pip_are_named_and_not_obeyed(shelf: Shelf, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/no/wheels")
    shelf.write("[global]\nindex-url = https://ada:sekret@m.example\ntimeout = 5\n", "pip.conf")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(shelf.project / "pip.conf"))
    shelf.wheel("toy")
    shelf.pyproject('"toy"')

    shelf.lock()

    (said,) = [each for each in shelf.said if "uv does not read pip's settings" in each]
    assert f"index-url ({shelf.project / 'pip.conf'})" in said
    assert "set UV_DEFAULT_INDEX" in said and "timeout" not in said and "sekret" not in said
    # uv's own variable is set instead
    assert "FIND_LINKS" not in said


def test_the_build_of_pytorch_for_the_hosts_driver_reaches_uv(shelf: Shelf, monkeypatch):
    log = shelf.folder.parent / "log"
    lines = f'case "$*" in *torch-backend*) echo "$*" >> "{log}"; exit 1;; esac\nexec "UV" "$@"\n'
    replace_uv(monkeypatch, shelf.project / "fake-uv", lines)
    shelf.wheel("torch", "2.7.1")
    shelf.pyproject('"torch==2.7.1"', python="==3.11.*")

    with pytest.raises(LockError):
        shelf.environment(shelf.read(), OLD_DRIVER)

    assert "--torch-backend cu118" in log.read_text()
    assert any("PyTorch 2.7.1 does not run on the GPUs of tensor01: driver" in said for said in shelf.said)


def test_what_uv_says_is_shown_without_passwords_and_in_its_own_words(shelf: Shelf, monkeypatch):
    lines = "echo 'error: no https://ada:sekret@m.invalid/simple' >&2\nexit 2\n"
    replace_uv(monkeypatch, shelf.project / "fake-uv", lines)
    shelf.pyproject('"toy"')

    assert shelf.refusal().evidence == ("error: no https://***@m.invalid/simple",)


@pytest.fixture
def private(shelf: Shelf) -> Iterator[str]:
    """host:port of an index that wants a password, with one wheel."""
    site = shelf.folder.parent / "site"
    wheel = shelf.wheel("hidden")
    (site / "simple" / "hidden").mkdir(parents=True)
    wheel.rename(site / wheel.name)
    link = f'<a href="/{wheel.name}#sha256={sha256(site / wheel.name)}">{wheel.name}</a>'
    (site / "simple" / "hidden" / "index.html").write_text(f"<html><body>{link}</body></html>")
    with asking_for_a_password(site) as address:
        yield address.removeprefix("http://")


def test_a_password_of_uvs_index_finds_wheels_and_stays_here(shelf: Shelf, private: str):
    shelf.indexes(f"http://ada:sekret@{private}/simple")
    shelf.pyproject('"hidden"')

    lock = shelf.lock()

    assert "hidden" in {each.name for each in lock.packages}
    assert "sekret" not in lock.path.read_text() and "ada:" not in lock.path.read_text()
    assert "sekret" not in "".join(shelf.said)


def test_a_private_index_of_the_project_has_its_password_in_uvs_variables(shelf: Shelf, private: str, monkeypatch):
    monkeypatch.setenv("UV_INDEX_OUR_OWN_USERNAME", "ada")
    monkeypatch.setenv("UV_INDEX_OUR_OWN_PASSWORD", "sekret")
    shelf.indexes()
    index = f'[[tool.uv.index]]\nname = "our-own"\nurl = "http://{private}/simple"\ndefault = true\n'
    shelf.pyproject('"hidden"', index)

    found = shelf.wheels()[0]

    assert found.url.startswith(f"http://{private}/hidden")
    _, path = download(found, shelf.read().project.indexes)
    assert sha256(path) == found.sha256


def test_a_download_takes_the_password_from_netrc(shelf: Shelf, private: str, monkeypatch):
    wheel = shelf.folder.parent / "site" / "hidden-1.0-py3-none-any.whl"
    files = f'[{{url = "http://{private}/{wheel.name}", hashes = {{sha256 = "{sha256(wheel)}"}}}}]'
    shelf.write(f'[[packages]]\nname = "hidden"\nversion = "1.0"\nwheels = {files}\n', "pylock.toml")
    shelf.indexes()
    (package,) = shelf.wheels("pylock.toml")
    with pytest.raises(EnvironmentBuildError, match="HTTP 401"):
        download(package)

    netrc = shelf.project / "netrc"
    netrc.write_text("machine 127.0.0.1 login ada password sekret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))

    assert download(package)[0] == package.sha256
