"""The wheels that uv finds for a host: its glibc, machine and Python count, and what the user allows."""

from __future__ import annotations

import base64
import functools
import http.server
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from clusterfn.config.spec import Host
from clusterfn.environment import conda_solver, download, package_sources, resolve, uv
from clusterfn.environment.lock import LockedPackage
from clusterfn.environment.package_sources import PipConfig
from clusterfn.environment.torch_build import GpuCapabilities
from clusterfn.environment.uv import file_rank, wheel_tags
from clusterfn.errors import EnvironmentBuildError, LockError
from tests.lock.conftest import sha256
from tests.unit.environment.shelf import HOST, Shelf
from tests.unit.environment.test_found_wheels import ARM, LOCAL

OLD_DRIVER = GpuCapabilities("470.57.02", ("7.0",), "nvidia-smi says on tensor01")


@pytest.mark.parametrize(
    ("glibc", "expected"),
    [("", 17), ("2.17", 17), ("2.27", 17), ("2.28", 28), ("2.30", 28), ("2.31", 31), ("2.39", 39), ("2.43", 40)],
)
def test_a_glibc_that_uv_does_not_know_becomes_an_older_one(glibc: str, expected: int):
    assert uv.platform_of(replace(HOST, glibc=glibc)) == f"x86_64-manylinux_2_{expected}"
    assert uv.platform_of(replace(ARM, glibc=glibc)) == f"aarch64-manylinux_2_{expected}"


@pytest.mark.parametrize("target", [replace(HOST, glibc="2.12"), replace(HOST, platform="linux-ppc64le")])
def test_a_host_that_uv_knows_nothing_of_is_refused_with_another_way(target):
    with pytest.raises(LockError, match="uv resolves nothing for") as caught:
        uv.platform_of(target)
    assert "environment.yml" in (caught.value.hint or "")


def test_the_rank_of_a_wheel():
    best_last = [
        "x-1.tar.gz", "x-1-py3-none-any.whl", "x-1-py3-none-manylinux1_x86_64.whl",
        "x-1-py3-none-manylinux2014_x86_64.whl", "x-1-cp38-abi3-manylinux_2_28_x86_64.whl",
        "x-1-cp39-abi3-manylinux_2_17_x86_64.whl", "x-1-cp311-cp311-linux_x86_64.whl",
        "x-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "x-1-2-cp311-cp311-manylinux_2_17_x86_64.whl",
    ]  # fmt: skip
    tags = wheel_tags("3.11", "x86_64-manylinux_2_28")
    assert sorted(best_last, key=lambda file: file_rank(file, tags)) == best_last
    assert file_rank("x-1-cp311-cp311-manylinux_2_34_x86_64.whl", tags) < file_rank("x-1.tar.gz", tags)


def test_the_settings_of_a_workspace_find_the_wheels_of_a_member(shelf: Shelf, monkeypatch):
    shelf.wheel("toy")
    monkeypatch.setattr(package_sources, "pip_config", lambda: PipConfig(()))
    shelf.write(f'[tool.uv.workspace]\nmembers = ["train"]\n{shelf.settings}')
    shelf.write(LOCAL.replace("helper", "train").format("toy") + "[tool.uv]\n", "train/pyproject.toml")

    assert shelf.found("train/pyproject.toml") == {"toy": "1.0"}


def test_an_index_that_does_not_answer_is_no_missing_solution_and_its_password_is_not_shown(shelf: Shelf, monkeypatch):
    config = PipConfig(("http://ada:sekret@127.0.0.1:9/simple",))
    monkeypatch.setattr(package_sources, "pip_config", lambda: config)
    shelf.pyproject('"toy"')

    refused = shelf.refusal()

    assert refused.message == "pyproject.toml could not be locked: a package index cannot be reached"
    assert "127.0.0.1:9" in str(refused) and "sekret" not in str(refused)


@pytest.mark.parametrize(
    ("file", "indexes", "variable", "expected"),
    [
        ("pyproject.toml", ("https://a", "https://b"), "", True),
        ("pyproject.toml", ("https://a", "https://b"), "UV_EXTRA_INDEX_URL", False),
        ("pyproject.toml", ("https://a",), "", False),
        ("requirements.txt", ("https://a",), "", True),
        ("requirements.txt", ("https://a",), "UV_EXTRA_INDEX_URL", False),
        ("requirements.txt", ("https://a",), "UV_INDEX", False),
    ],
)
def test_the_best_version_of_all_indexes_counts_for_pips_own_indexes_alone(
    shelf: Shelf, monkeypatch, file: str, indexes: tuple[str, ...], variable: str, expected: bool
):
    asked = asked_of_uv(shelf, monkeypatch)
    monkeypatch.setattr(package_sources, "pip_config", lambda: PipConfig(indexes))
    if variable:
        monkeypatch.setenv(variable, "https://ours.example/simple")
    shelf.pyproject('"toy"')
    shelf.write("toy\n", "requirements.txt")

    shelf.refusal(file)

    assert ("unsafe-best-match" in asked[0][0]) is expected


def test_an_index_of_the_project_is_asked_first_and_pips_further_ones_are_not(shelf: Shelf, monkeypatch):
    asked = asked_of_uv(shelf, monkeypatch)
    monkeypatch.setattr(package_sources, "pip_config", lambda: PipConfig(("https://a", "https://b")))
    shelf.pyproject('"toy"', '[[tool.uv.index]]\nurl = "https://ours.example"\n')

    shelf.refusal()

    assert "unsafe-best-match" not in asked[0][0] and "UV_EXTRA_INDEX_URL" not in asked[0][1]


def asked_of_uv(shelf: Shelf, monkeypatch) -> list[tuple[list[str], dict[str, str]]]:
    """Return what uv will have been asked: its arguments and variables. It finds nothing."""
    asked: list[tuple[list[str], dict[str, str]]] = []

    def run(argv, report, *, given, folder, variables) -> subprocess.CompletedProcess[str]:
        asked.append((list(argv), dict(variables)))
        return subprocess.CompletedProcess(argv, 1, "", "no solution")

    monkeypatch.setattr(conda_solver, "run_program", run)
    return asked


def test_the_build_of_pytorch_for_the_hosts_driver_reaches_uv(shelf: Shelf, monkeypatch):
    log = shelf.folder.parent / "log"
    program = shelf.write(
        f'#!/bin/sh\ncase "$*" in *torch-backend*) echo "$*" >> "{log}"; exit 1;; esac\nexec "{uv.find_uv()}" "$@"\n',
        "fake-uv",
    )
    program.chmod(0o755)
    monkeypatch.setattr(uv, "find_uv", lambda: str(program))
    shelf.wheel("torch", "2.7.1")
    shelf.pyproject('"torch==2.7.1"', python="==3.11.*")
    facts = {"platform": "linux-x86_64", "glibc": "2.28", "root": "/root"}
    host = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")

    with pytest.raises(LockError):
        resolve.resolve_environment(shelf.read(), host, facts, OLD_DRIVER, (3, 11), shelf.said.append)

    assert "--torch-backend cu118" in log.read_text()
    assert any("PyTorch 2.7.1 does not run on the GPUs of tensor01: driver" in said for said in shelf.said)


def test_what_uv_says_is_shown_without_passwords_and_in_its_own_words(shelf: Shelf, monkeypatch):
    program = shelf.write("#!/bin/sh\necho 'error: no https://ada:sekret@m.invalid/simple' >&2\nexit 2\n", "fake-uv")
    program.chmod(0o755)
    monkeypatch.setattr(uv, "find_uv", lambda: str(program))
    shelf.pyproject('"toy"')

    assert shelf.refusal().evidence == ("error: no https://***@m.invalid/simple",)


def test_without_uv_it_is_said_what_to_install(shelf: Shelf, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(shelf.folder))

    with pytest.raises(LockError, match="there is no uv") as caught:
        uv.find_uv()

    assert caught.value.hint == "pip install 'uv>=0.12,<1'"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((False, False), {"UV_DEFAULT_INDEX": "https://m/simple", "UV_EXTRA_INDEX_URL": "https://b https://c"}),
        ((True, False), {"UV_DEFAULT_INDEX": "https://m/simple"}),
        ((False, True), {"UV_EXTRA_INDEX_URL": "https://b https://c"}),
        ((True, True), {}),
    ],
)
def test_pips_settings_count_where_uv_has_none(shelf: Shelf, own: tuple[bool, bool], expected: dict[str, str]):
    pip = PipConfig(("https://m/simple", "https://b", "https://c"), ("/wheels",), (("REQUESTS_CA_BUNDLE", "/ca.pem"),))

    found = uv.variables_with_indexes(pip, has_indexes=own[0], has_default=own[1])

    assert {name: value for name, value in found.items() if "INDEX" in name} == expected
    assert found["UV_FIND_LINKS"] == "/wheels"


class _Private(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "").partition(" ")[2]
        if base64.b64decode(given) == b"ada:sekret":
            super().do_GET()
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            self.send_header("Content-Length", "0")
            self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def private(shelf: Shelf) -> Iterator[str]:
    """host:port of an index that wants a password, with one wheel."""
    site = shelf.folder.parent / "site"
    wheel = shelf.wheel("hidden")
    (site / "simple" / "hidden").mkdir(parents=True)
    wheel.rename(site / wheel.name)
    link = f'<a href="/{wheel.name}#sha256={sha256(site / wheel.name)}">{wheel.name}</a>'
    (site / "simple" / "hidden" / "index.html").write_text(f"<html><body>{link}</body></html>")
    handler = functools.partial(_Private, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_password_of_pips_index_finds_wheels_and_stays_here(shelf: Shelf, private: str, monkeypatch):
    config = PipConfig((f"http://ada:sekret@{private}/simple",))
    monkeypatch.setattr(package_sources, "pip_config", lambda: config)
    shelf.pyproject('"hidden"')

    lock = shelf.lock()

    assert "hidden" in {each.name for each in lock.packages}
    assert "sekret" not in lock.path.read_text() and "ada:" not in lock.path.read_text()
    assert "sekret" not in "".join(shelf.said)


def test_a_private_index_of_the_project_has_its_password_in_uvs_variables(shelf: Shelf, private: str, monkeypatch):
    monkeypatch.setenv("UV_INDEX_OUR_OWN_USERNAME", "ada")
    monkeypatch.setenv("UV_INDEX_OUR_OWN_PASSWORD", "sekret")
    monkeypatch.setattr(package_sources, "pip_config", lambda: PipConfig(()))
    index = f'[[tool.uv.index]]\nname = "our-own"\nurl = "http://{private}/simple"\ndefault = true\n'
    shelf.pyproject('"hidden"', index)

    found = shelf.wheels()[0]

    assert found.url.startswith(f"http://{private}/hidden")
    [(_, path)] = download.download_packages([found], lambda *_: None, shelf.read().project.indexes)
    assert sha256(path) == found.sha256


def test_a_download_takes_the_password_from_netrc(shelf: Shelf, private: str, monkeypatch):
    monkeypatch.setattr(package_sources, "pip_config", lambda: PipConfig(()))
    url = f"http://{private}/hidden-1.0-py3-none-any.whl"
    wheel = shelf.folder.parent / "site" / "hidden-1.0-py3-none-any.whl"
    package = LockedPackage("hidden", "1.0", "pip", url, sha256(wheel), "linux-64")
    with pytest.raises(EnvironmentBuildError, match="HTTP 401"):
        list(download.download_packages([package], lambda *_: None))

    netrc = shelf.project / "netrc"
    netrc.write_text("machine 127.0.0.1 login ada password sekret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))

    assert list(download.download_packages([package], lambda *_: None))[0][0] == package.sha256
