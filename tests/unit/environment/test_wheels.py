"""The wheels that uv finds for a host: its glibc, machine and Python count, and what the user allows."""

from __future__ import annotations

import base64
import functools
import http.server
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterfn.config.spec import Host
from clusterfn.environment import conda_solver, download, package_sources, resolve, uv
from clusterfn.environment.cuda import GpuCapabilities
from clusterfn.environment.lock import LockedPackage
from clusterfn.environment.package_sources import PipConfig
from clusterfn.environment.wheel_files import file_rank, wheel_tags
from clusterfn.errors import EnvironmentBuildError, LockError
from tests.lock.conftest import sha256
from tests.unit.environment.shelf import HOST, Shelf, shelf_in

ARM = replace(HOST, platform="linux-aarch64")
OLD_DRIVER = GpuCapabilities("470.57.02", ("7.0",), "nvidia-smi says on tensor01")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    with shelf_in(tmp_path, monkeypatch) as made:
        yield made


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


def test_the_newest_version_that_the_hosts_glibc_can_load_is_found(shelf: Shelf):
    shelf.wheel("toy", "1.0", "cp311-cp311-manylinux_2_17_x86_64")
    shelf.wheel("toy", "2.0", "cp311-cp311-manylinux_2_28_x86_64")
    shelf.pyproject('"toy"')

    assert shelf.found(target=replace(HOST, glibc="2.27")) == {"toy": "1.0"}
    assert shelf.found() == {"toy": "2.0"}


def test_of_several_wheels_that_fit_the_most_specific_is_taken(shelf: Shelf):
    tags = ["py3-none-any", "cp39-abi3-manylinux_2_28_x86_64", "cp311-cp311-manylinux_2_17_x86_64",
            "cp311-cp311-manylinux_2_28_x86_64", "cp312-cp312-manylinux_2_28_x86_64"]  # fmt: skip
    for tag in tags:
        shelf.wheel("toy", "1.0", tag)
    shelf.pyproject('"toy"')

    assert shelf.wheels()[0].url.endswith("toy-1.0-cp311-cp311-manylinux_2_28_x86_64.whl")


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


def test_markers_mean_the_host_and_not_this_machine(shelf: Shelf):
    for name in ("arm", "intel", "win", "old", "patch"):
        shelf.wheel(name)
    shelf.pyproject(
        "\"arm; platform_machine == 'aarch64'\", \"intel; platform_machine == 'x86_64'\", "
        "\"win; sys_platform == 'win32'\", \"old; python_version < '3.11'\", \"patch; python_full_version < '3.10.5'\""
    )

    assert set(shelf.found()) == {"intel"}
    assert set(shelf.found(target=ARM, python="3.10")) == {"arm", "old", "patch"}
    assert set(shelf.found(target=ARM, python="3.10.9")) == {"arm", "old"}


def test_extras_and_groups_that_are_named_are_found_and_no_others(shelf: Shelf):
    for name in ("base", "fast", "slow", "tester", "linter"):
        shelf.wheel(name)
    shelf.pyproject(
        '"base"', '[project.optional-dependencies]\ngpu = ["fast"]\ncpu = ["slow"]\n'
        '[dependency-groups]\ndev = ["tester", {include-group = "lint"}]\nlint = ["linter"]\n'
    )  # fmt: skip

    assert set(shelf.found()) == {"base"}
    assert set(shelf.found("pyproject.toml", "gpu")) == {"base", "fast"}
    assert set(shelf.found("pyproject.toml", "cpu", "group:dev")) == {"base", "slow", "tester", "linter"}


LOCAL = '[project]\nname = "helper"\nversion = "0.1"\ndependencies = ["{}"]\n'


def test_the_dependencies_of_a_local_package_are_found_and_it_is_sent_as_source(shelf: Shelf):
    shelf.wheel("deep")
    shelf.write(LOCAL.format("deep"), "libs/helper/pyproject.toml")
    shelf.pyproject('"helper"', '[tool.uv.sources]\nhelper = {path = "libs/helper", editable = true}\n')

    assert shelf.found() == {"deep": "1.0"}
    assert shelf.said == ["helper: clusterfn sends local packages as source"]


def test_a_member_of_a_workspace_has_its_dependencies_found(shelf: Shelf):
    shelf.wheel("deep")
    shelf.write('[tool.uv.workspace]\nmembers = ["*"]\n')
    shelf.write(LOCAL.format("deep"), "helper/pyproject.toml")
    shelf.write(LOCAL.replace("helper", "train").format("helper") + "[tool.uv.sources]\nhelper.workspace = true\n",
                "train/pyproject.toml")  # fmt: skip

    assert shelf.found("train/pyproject.toml") == {"deep": "1.0"}


def test_the_settings_of_a_workspace_find_the_wheels_of_a_member(shelf: Shelf, monkeypatch):
    shelf.wheel("toy")
    monkeypatch.setattr(package_sources, "pip_config", lambda: PipConfig(()))
    shelf.write(f'[tool.uv.workspace]\nmembers = ["train"]\n{shelf.settings}')
    shelf.write(LOCAL.replace("helper", "train").format("toy") + "[tool.uv]\n", "train/pyproject.toml")

    assert shelf.found("train/pyproject.toml") == {"toy": "1.0"}


def test_a_local_package_that_is_not_editable_is_named(shelf: Shelf):
    shelf.wheel("deep")
    shelf.write(LOCAL.format("deep"), "libs/helper/pyproject.toml")
    shelf.pyproject('"helper"', '[tool.uv.sources]\nhelper = {path = "libs/helper"}\n')

    assert shelf.found() == {"deep": "1.0"}
    assert "helper: make it editable" in shelf.said[-1]


def test_requirements_name_other_files_constraints_and_projects(shelf: Shelf):
    for name, version in (("toy", "1.0"), ("toy", "2.0"), ("more", "1.0"), ("deep", "1.0")):
        shelf.wheel(name, version)
    shelf.write(LOCAL.format("deep"), "helper/pyproject.toml")
    shelf.write("toy<2\n", "constraints.txt")
    shelf.write("more  # of another file\n", "more.txt")
    shelf.write("-c constraints.txt\n-r more.txt\ntoy\n-e ./helper\n", "requirements.txt")

    assert shelf.found("requirements.txt") == {"toy": "1.0", "more": "1.0", "deep": "1.0"}


def test_hashes_of_requirements_are_compared(shelf: Shelf):
    wheel = shelf.wheel("toy")
    shelf.write(f"toy==1.0 \\\n  --hash=sha256:{'0' * 64} \\\n  --hash=sha256:{sha256(wheel)}\n", "requirements.txt")
    assert shelf.wheels("requirements.txt")[0].sha256 == sha256(wheel)

    shelf.write(f"toy==1.0 --hash=sha256:{'0' * 64}\n", "requirements.txt")
    refused = shelf.refusal("requirements.txt")
    assert refused.message == "requirements.txt: toy 1.0 has another hash than the file allows"
    assert sha256(wheel) in refused.evidence[0]


def test_where_some_have_hashes_all_must(shelf: Shelf):
    wheel = shelf.wheel("toy", requires="deep")
    shelf.wheel("deep")
    shelf.write(f"toy==1.0 --hash=sha256:{sha256(wheel)}\n", "requirements.txt")

    assert shelf.refusal("requirements.txt").message == "requirements.txt has hashes, but none for deep 1.0"


def test_a_line_that_uv_rejects_is_shown_with_its_own_words(shelf: Shelf):
    shelf.pyproject('"toy=>2"')

    refused = shelf.refusal()

    assert refused.message == "pyproject.toml could not be locked: uv rejects it"
    assert "no such comparison operator" in " ".join(refused.evidence)


def test_an_index_that_does_not_answer_is_no_missing_solution_and_its_password_is_not_shown(shelf: Shelf, monkeypatch):
    config = PipConfig(("http://ada:sekret@127.0.0.1:9/simple",))
    monkeypatch.setattr(package_sources, "pip_config", lambda: config)
    shelf.pyproject('"toy"')

    refused = shelf.refusal()

    assert refused.message == "pyproject.toml could not be locked: a package index cannot be reached"
    assert "127.0.0.1:9" in str(refused) and "sekret" not in str(refused)


def test_a_uv_lock_gives_its_own_versions_for_the_host(shelf: Shelf):
    for version in ("1.0", "2.0"):
        shelf.wheel("toy", version, "cp311-cp311-manylinux_2_17_x86_64")
        shelf.wheel("toy", version, "cp311-cp311-manylinux_2_28_x86_64")
        shelf.wheel("toy", version, "cp311-cp311-manylinux_2_17_aarch64")
    shelf.wheel("win")
    shelf.wheel("fast")
    shelf.pyproject(
        '"toy<2", "win; sys_platform == \'win32\'"',
        f'[project.optional-dependencies]\ngpu = ["fast"]\n{shelf.settings}', ">=3.11",
    )  # fmt: skip
    shelf.uv_lock()
    shelf.wheel("toy", "1.5", "cp311-cp311-manylinux_2_17_x86_64")  # after it was locked

    assert shelf.found("uv.lock") == {"toy": "1.0"}
    assert shelf.found("uv.lock", "gpu") == {"toy": "1.0", "fast": "1.0"}
    assert shelf.wheels("uv.lock")[0].url.endswith("manylinux_2_28_x86_64.whl")
    assert shelf.wheels("uv.lock", target=replace(HOST, glibc="2.27"))[0].url.endswith("manylinux_2_17_x86_64.whl")
    assert shelf.wheels("uv.lock", target=ARM)[0].url.endswith("aarch64.whl")


def test_a_uv_lock_that_is_out_of_date_is_refused(shelf: Shelf):
    shelf.wheel("toy")
    shelf.wheel("more")
    shelf.pyproject('"toy"', shelf.settings)
    shelf.uv_lock()
    shelf.pyproject('"toy", "more"', shelf.settings)

    refused = shelf.refusal("uv.lock")

    assert refused.message == "uv.lock is out of date: pyproject.toml has changed since"
    assert refused.hint == f"run `uv lock` in {shelf.project}"


def test_a_uv_lock_for_a_newer_python_than_this_one_is_used_and_the_missing_check_is_said(shelf: Shelf, monkeypatch):
    shelf.wheel("toy")
    text = shelf.pyproject('"toy"', shelf.settings).read_text()
    shelf.uv_lock()
    newer = shelf.project / "uv.lock"
    shelf.write(text.replace(">=3.9", ">=3.99"))
    newer.write_text(newer.read_text().replace(">=3.9", ">=3.99"))

    assert shelf.found("uv.lock", python="3.99") == {"toy": "1.0"}
    assert "uv.lock may be out of date, uv cannot check it here" in shelf.said[0]


PYLOCK = """\
lock-version = "1.0"
[[packages]]
name = "toy"
version = "1.0"
marker = "sys_platform == 'linux'"
wheels = [{{ url = "https://ada:sekret@files.invalid/toy-1.0-py3-none-any.whl", hashes = {{ sha256 = "{0}" }} }}]
[[packages]]
name = "win"
version = "1.0"
marker = "sys_platform == 'win32'"
wheels = [{{ url = "https://files.invalid/win-1.0-py3-none-any.whl", hashes = {{ sha256 = "{0}" }} }}]
[[packages]]
name = "near"
archive = {{ path = "../wheels/near-3.0-py3-none-any.whl", hashes = {{ sha256 = "{0}" }} }}
[[packages]]
name = "mine"
directory = {{ path = ".", editable = true }}
"""


def test_a_pylock_is_read_without_asking_its_server(shelf: Shelf):
    near = shelf.wheel("near", "3.0")
    shelf.write(PYLOCK.format("a" * 64), "pylock.toml")

    near_found, toy = shelf.wheels("pylock.toml")

    assert (toy.url, toy.sha256) == ("https://files.invalid/toy-1.0-py3-none-any.whl", "a" * 64)
    assert (near_found.name, near_found.version, near_found.url) == ("near", "3.0", near.as_uri())


TWO_BUILDS = """\
lock-version = "1.0"
[[packages]]
name = "toy"
version = "1.0"
marker = "platform_machine != 'aarch64'"
wheels = [{{ url = "https://files.invalid/toy-1.0-py3-none-any.whl", hashes = {{ sha256 = "{0}" }} }}]
[[packages]]
name = "toy"
version = "1.0+cpu"
marker = "platform_machine == 'aarch64'"
wheels = [{{ url = "https://files.invalid/toy-1.0%2Bcpu-py3-none-any.whl", hashes = {{ sha256 = "{0}" }} }}]
"""


def test_of_two_builds_of_one_version_a_lock_gives_the_one_whose_marker_holds(shelf: Shelf):
    shelf.write(TWO_BUILDS.format("a" * 64), "pylock.toml")

    assert shelf.found("pylock.toml") == {"toy": "1.0"}
    assert shelf.found("pylock.toml", target=ARM) == {"toy": "1.0+cpu"}


ONE_VERSION = """\
[[packages]]
name = "toy"
version = "1.0"
marker = "python_full_version < '3.11'"
wheels = [{{url = "https://a.invalid/toy-1.0-py3-none-any.whl", hashes = {{sha256 = "{0}"}}}}]

[[packages]]
name = "toy"
version = "1.0"
marker = "python_full_version >= '3.11'"
wheels = [{{url = "https://b.invalid/toy-1.0-py3-none-any.whl", hashes = {{sha256 = "{1}"}}}}]
"""


@pytest.mark.parametrize(("python", "server"), [("3.10", "a"), ("3.11", "b")])
def test_of_one_version_from_two_indexes_a_lock_gives_the_file_whose_marker_holds(
    shelf: Shelf, python: str, server: str
):
    shelf.write(ONE_VERSION.format("a" * 64, "b" * 64), "pylock.toml")

    (toy,) = shelf.wheels("pylock.toml", python=python)

    assert (toy.url, toy.sha256) == (f"https://{server}.invalid/toy-1.0-py3-none-any.whl", server * 64)


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


def test_variables_of_uv_that_narrow_the_choice_do_not_count(shelf: Shelf, monkeypatch):
    shelf.wheel("toy", "2.0")
    limit = shelf.write("toy<2\n", "limit.txt")
    for name in ("UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE"):
        monkeypatch.setenv(name, str(limit))
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2001-01-01")
    monkeypatch.setenv("UV_WORKING_DIR", str(shelf.folder))
    shelf.pyproject('"toy"')
    shelf.write(PYLOCK.format("a" * 64).partition('[[packages]]\nname = "near')[0], "pylock.toml")

    assert shelf.found() == {"toy": "2.0"}
    assert shelf.found("pylock.toml") == {"toy": "1.0"}


def test_a_repository_of_another_kind_than_git_in_a_pylock_is_refused_by_name(shelf: Shelf):
    shelf.write('[[packages]]\nname = "x"\nvcs = {type = "hg", url = "https://ada:sekret@e.org/x"}\n', "pylock.toml")
    assert "https://***@e.org/x is no commit of a git repository" in shelf.refusal("pylock.toml").message


def test_a_choice_of_pytorch_for_one_host_reaches_uv(shelf: Shelf):
    shelf.wheel("torch", "2.6.0")
    shelf.wheel("torch", "2.7.1")
    shelf.pyproject('"torch"')
    pinned = replace(shelf.read(), pins=("torch==2.6.*",))

    found = shelf.find(pinned)

    assert [(each.name, each.version) for each in found] == [("torch", "2.6.0")]


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


DYNAMIC = """\
[project]
name = "{0}"
version = "0.1"
dynamic = ["dependencies"]
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """\
import pathlib
METADATA = "Metadata-Version: 2.1\\nName: {0}\\nVersion: 0.1\\nRequires-Dist: deep\\n"
def prepare_metadata_for_build_wheel(folder, settings=None):
    place = pathlib.Path(folder, "{0}-0.1.dist-info")
    place.mkdir()
    (place / "METADATA").write_text(METADATA)
    return place.name
prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel
"""


def test_a_project_whose_build_backend_knows_its_dependencies_is_asked_for_them(shelf: Shelf):
    shelf.wheel("deep")
    shelf.write(DYNAMIC.format("mine"))
    shelf.write(BACKEND.format("mine"), "backend.py")

    assert shelf.found() == {"deep": "1.0"}


def test_an_editable_line_may_name_such_a_project(shelf: Shelf):
    shelf.wheel("deep")
    shelf.write(DYNAMIC.format("helper"), "helper/pyproject.toml")
    shelf.write(BACKEND.format("helper"), "helper/backend.py")
    shelf.write("-e ./helper\n", "requirements.txt")

    assert shelf.found("requirements.txt") == {"deep": "1.0"}


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
