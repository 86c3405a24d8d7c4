"""A git repository: locked to a commit, and sent as an archive that is the same on every machine."""

from __future__ import annotations

import base64
import functools
import http.server
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterfn import EnvironmentBuildError, LockError
from tests.builder import toys
from tests.unit.environment.shelf import Shelf, download, pack_commit

TABLE = '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
TABLE += '[project]\nname = "gift"\nversion = "2.5"\n'


@pytest.fixture
def shelf(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shelf.wheel("pip")
    return shelf


def git(folder: Path, *words: str) -> str:
    own = ["-c", "user.name=ada", "-c", "user.email=ada@e.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *own, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a package, and another one in a folder below it."""
    folder = tmp_path / "gift"
    files = {**toys.with_backend("gift"), "pyproject.toml": TABLE}
    for top, name in ((folder, "gift"), (folder / "inner", "small")):
        top.mkdir()
        for file, text in files.items():
            (top / file).write_text(text.replace("gift", name))
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


@pytest.mark.parametrize(
    ("line", "name", "inside"),
    [
        ("gift @ {0}", "gift", ""), ("{0}", "gift", ""), ("-e {0}#egg=gift", "gift", ""),
        ("{0}@{1}#egg=gift", "gift", ""),
        ("small @ {0}#subdirectory=inner", "small", "#subdirectory=inner"),
    ],
)  # fmt: skip
def test_a_line_is_locked_to_a_commit(shelf: Shelf, repository: Path, line: str, name: str, inside: str):
    address, commit = f"git+{repository.as_uri()}", git(repository, "rev-parse", "HEAD")
    shelf.write(f"{line.format(address, commit)}\n", "requirements.txt")

    (found,) = shelf.wheels("requirements.txt")

    assert (found.name, found.version, found.is_source) == (name, "2.5", True)
    assert found.url == f"{address}@{commit}{inside}"
    assert "own.py" in packed(found) and ("inner/own.py" in packed(found)) is (not inside)


def packed(found: Any) -> set[str]:
    """The files in the archive of a commit, without its top folder."""
    _, path = download(found)
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.parametrize("line", ["gift @ git+{0}", "gift @ git+{1}@no-such-branch"])
def test_a_repository_that_git_cannot_read_is_no_question_of_versions(shelf: Shelf, repository: Path, line: str):
    gone = repository.with_name("gone").as_uri()
    shelf.write(f"{line.format(gone, repository.as_uri())}\n", "requirements.txt")

    refused = shelf.refusal("requirements.txt")

    assert refused.message == "requirements.txt could not be locked: git cannot read a repository that it names"
    assert any("gift" in each or "gone" in each for each in refused.evidence) and "git clone" in str(refused.hint)


@pytest.mark.parametrize(
    "address",
    [
        "git+--upload-pack=touch came-in;@{0}", "git+--upload-pack=touch came-in;@file:{1}",
        "git+ext::sh -c touch% came-in@{0}", "git+file://{1}@--upload-pack=touch came-in",
        "git+file://{1}@HEAD", "git+ssh://-oProxyCommand=touch came-in/x@{0}",
    ],
)  # fmt: skip
def test_an_address_of_somebody_else_is_no_option_of_git_and_starts_no_program(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    commit = git(repository, "rev-parse", "HEAD")

    with pytest.raises(LockError, match="is no commit of a git repository"):
        pack_commit(address.format(commit, repository), "gift")

    assert not list(tmp_path.rglob("came-in*"))


@pytest.mark.parametrize("inside", ["../../secret", "link", "gone", "{0}"])
def test_a_subdirectory_is_in_the_repository(repository: Path, tmp_path: Path, inside: str):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "id_rsa").write_text("key")
    (repository / "link").symlink_to(secret)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "second")
    address = f"git+{repository.as_uri()}@{git(repository, 'rev-parse', 'HEAD')}"

    with pytest.raises(LockError, match="git cannot read"):
        pack_commit(f"{address}#subdirectory={inside.format(secret)}", "gift")


def test_a_hook_of_git_that_runs_this_program_keeps_its_own_repository(repository, tmp_path, monkeypatch):
    own = tmp_path / "own"
    git(tmp_path, "clone", "--quiet", str(repository), str(own))
    (own / "more").write_text("\r\n")
    git(own, "add", "--all")
    before = git(own, "status", "--short", "--branch")
    address = f"git+{repository.as_uri()}@{git(repository, 'rev-parse', 'HEAD')}"

    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", str(own / ".git"))
        hook.setenv("GIT_INDEX_FILE", str(own / ".git" / "index"))
        pack_commit(address, "gift")

    assert git(own, "status", "--short", "--branch") == before


def test_the_archive_is_the_same_whatever_git_is_set_to(repository, tmp_path, monkeypatch):
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(repository), str(clone))
    commit = git(repository, "rev-parse", "HEAD")
    first = pack_commit(f"git+{repository.as_uri()}@{commit}", "gift")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text("[core]\nautocrlf = true\n[safe]\ndirectory = *\n")

    assert pack_commit(f"git+{clone.as_uri()}@{commit}", "gift") == first


@contextmanager
def asking_for_a_password(folder: Path) -> Iterator[str]:
    """Serve a folder to who gives the name and password of ada; yield its address without them."""
    given = "Basic " + base64.b64encode(b"ada:sekret").decode()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers["Authorization"] == given:
                super().do_GET()
                return
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("file", ["requirements.txt", "pyproject.toml", "a variable", "an archive"])
def test_the_password_of_an_address_is_used_and_written_nowhere(shelf, repository, tmp_path, monkeypatch, file):
    monkeypatch.setenv("SECRET", "sekret")
    git(repository, "update-server-info")
    toys.sdist(tmp_path, "toy", {**toys.with_backend("toy")})
    with asking_for_a_password(tmp_path) as server:
        private = server.replace("://", "://ada:${SECRET}@" if file == "a variable" else "://ada:sekret@")
        wanted = f"gift @ git+{private}/gift/.git"
        if file == "pyproject.toml":
            source = f'gift = {{git = "{private}/gift/.git"}}'
            shelf.pyproject('"gift"', f"{shelf.settings}[tool.uv.sources]\n{source}\n")
        else:
            wanted = f"toy @ {private}/toy-1.0.tar.gz" if file == "an archive" else wanted
            shelf.write(f"{wanted}\n", "requirements.txt")
        name = file if file == "pyproject.toml" else "requirements.txt"

        lock = shelf.lock(name)
        shutil.rmtree(tmp_path / "cache" / "clusterfn")
        (found,) = [each for each in lock.packages if each.name in ("gift", "toy")]
        digest, _ = download(found, shelf.read(name).addresses)

    assert digest == found.sha256 and server in found.url
    assert "sekret" not in lock.path.read_text() and "SECRET" not in lock.path.read_text()


def test_a_project_and_its_lock_may_name_a_repository(shelf: Shelf, repository: Path):
    shelf.pyproject('"gift"', f'{shelf.settings}[tool.uv.sources]\ngift = {{git = "{repository.as_uri()}"}}\n')
    shelf.uv_lock()

    (of_project,), (of_lock,) = shelf.wheels(), shelf.wheels("uv.lock")

    assert of_project == of_lock and of_lock.url.startswith("git+file://")


def test_the_lock_and_its_archive_are_read_again(shelf: Shelf, repository: Path):
    shelf.write(f"gift @ git+{repository.as_uri()}\n", "requirements.txt")

    gift = next(each for each in shelf.lock("requirements.txt").packages if each.name == "gift")

    assert (gift.file, gift.is_source) == ("gift-2.5.tar", True)
    wrong = replace(gift, url=gift.url.replace("gift", "gone"), sha256="0" * 64)
    with pytest.raises((EnvironmentBuildError, LockError), match="git cannot read"):
        download(wrong)
    with pytest.raises(EnvironmentBuildError, match="gift 2.5 has other files than when it was locked"):
        download(replace(gift, sha256="0" * 64))
