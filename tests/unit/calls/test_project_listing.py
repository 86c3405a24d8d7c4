"""What travels of a project, with a command and with a function, and by which rule the rest does not."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import zlib
from pathlib import Path

import pytest

from clusterfn.errors import ConfigError
from clusterfn.hosts.rpc.file_requests import FileHead, pieces_of
from clusterfn.packing.files import Directory, shipment
from clusterfn.packing.project import explain
from clusterfn.packing.project.git import GitRefused
from clusterfn.packing.project.model import Project
from tests.unit.calls.own_project import sent

GIT = ["git", "-c", "protocol.file.allow=always", "-c", "user.name=ada", "-c", "user.email=ada@example.edu"]


def git(folder: Path, *words: str) -> None:
    subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True)


def lay_out(root: Path, files: list[str]) -> None:
    """Make files, folders (`x/`) and links (`x -> y`); `x: text` is a file with this text."""
    for each in files:
        name, _, text = each.partition(": ")
        name, _, target = name.partition(" -> ")
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if target:
            path.symlink_to(target.format(root=root))
        elif name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.write_text(text)


def whole(root: Path) -> None:
    git(root, "init", "-q")


def below(root: Path) -> None:
    git(root.parent, "init", "-q")


def damaged(root: Path) -> None:
    whole(root)
    (root / ".git/HEAD").unlink()


def orphaned(root: Path) -> None:
    (root / ".git").write_text("gitdir: /nowhere/worktrees/project\n")


def of_another(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    whole(root)
    os.chown(root, 65534, 65534)


def worktree(root: Path) -> None:
    whole(root)
    git(root, "commit", "-q", "--allow-empty", "-m", "first")
    root.rename(root.parent / "main")
    git(root.parent / "main", "worktree", "add", "-q", str(root))
    for path in list((root.parent / "main").iterdir()):
        if path.name != ".git":
            path.rename(root / path.name)


def deleted(root: Path) -> None:
    lay_out(root, ["gone.py"])
    whole(root)
    git(root, "add", "gone.py")
    (root / "gone.py").unlink()


def forced(root: Path) -> None:
    whole(root)
    git(root, "add", "--force", "data/x.csv")


def nested(root: Path) -> None:
    whole(root)
    lay_out(root, ["lib/.gitignore: *.bin", "lib/a.py", "lib/a.bin"])
    git(root / "lib", "init", "-q")


def no_git(root: Path) -> None:
    (root / ".gitignore").unlink()


def nothing(root: Path) -> None:
    pass


IGNORED = {".gitignore", "data", "train.py"}
EVERYTHING = {"data/x.csv", "train.py"}


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (whole, IGNORED), (worktree, IGNORED | {".git"}), (nothing, IGNORED), (deleted, IGNORED),
        (forced, {".gitignore", "data/x.csv", "train.py"}), (nested, IGNORED | {"lib/.gitignore", "lib/a.py"}),
        (no_git, EVERYTHING), (below, IGNORED), (damaged, "not a git repository"), (orphaned, "not a git repository"),
        (of_another, "dubious ownership"),
    ],
)  # fmt: skip
def test_git_says_what_belongs_to_a_project_or_nothing_is_sent(tmp_path, monkeypatch, make, names):
    root = tmp_path / "project"
    lay_out(root, [".gitignore: data/\n", "data/x.csv", "train.py"])
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    make(root)
    # A hook of git sets this for the programs that it starts.
    monkeypatch.setenv("GIT_DIR", "/nowhere")

    if isinstance(names, str):
        with pytest.raises(GitRefused) as caught:
            Project(root).contents()
        assert names in str(caught.value.evidence) and caught.value.hint
    else:
        found = Project(root).contents()
        assert {*(each.name for each in found.files), *found.folders} - {".git"} == names - {".git"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([".gitignore: data/", "data/train/a.csv", "data/b.csv"], "/data: not sent"),
        ([".gitignore: *.jpg", "data/README", "data/a.jpg", "data/b.jpg"], "/data/*.jpg: not sent"),
        ([".gitignore: raw/", "mine/__init__.py", "mine/raw/a.csv"], "/mine/raw: not sent"),
        # These are missed by their names, or nothing is.
        ([".gitignore: *.pkl\n.cache/", "a.pkl", ".cache/b", "empty/"], ""),
    ],
)  # fmt: skip
def test_folders_whose_files_git_ignores_are_named_once_because_a_program_finds_nothing_there(
    tmp_path, monkeypatch, capsys, files, said
):
    root = tmp_path / "project"
    lay_out(root, files)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(root)

    for _ in range(2):
        Project(root).contents()
    told = capsys.readouterr().err
    assert told.count("because git ignores it") == bool(said) and said in told


def test_a_repository_without_git_is_refused_and_a_gitignore_without_git_is_named(tmp_path, monkeypatch, capsys):
    lay_out(tmp_path, ["plain/.gitignore: x.csv", "plain/x.csv", "repository/x.csv"])
    whole(tmp_path / "repository")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(GitRefused, match="install git"):
        Project(tmp_path / "repository").contents()
    assert {each.name for each in Project(tmp_path / "plain").contents().files} == {".gitignore", "x.csv"}
    assert f"{tmp_path}/plain has a .gitignore, which has no effect: install git" in capsys.readouterr().err


# The files of a project, what a command sends of them, and what a function does that imports `pkg`.
ROWS = {
    "environments are known by what is in them": (
        ["env/pyvenv.cfg", "env/lib/x.py", "pkg/__init__.py", "pkg/.conda/conda-meta/x.json", "tools/venv/pyvenv.cfg"],
        {"pkg/__init__.py", "tools"}, {"pkg/__init__.py"},
    ),
    "code named env is code": (
        [".gitignore: env/\nbuild/\n", "main.py: import pkg.build.a\nfrom env import Maze", "env/__init__.py",
         "env/maze.py", "env/x.png",
         "pkg/__init__.py", "pkg/build/__init__.py", "pkg/build/a.py"],
        {".gitignore", "main.py", "env/__init__.py", "env/maze.py", "pkg/__init__.py", "pkg/build/__init__.py",
         "pkg/build/a.py"},
        {"pkg/__init__.py", "pkg/build/__init__.py", "pkg/build/a.py"},
    ),
    "generated code that git ignores": (
        [".gitignore: _version.py\n*_pb2.py\nlocal.py\n*.npy", "pkg/__init__.py: from . import _version",
         "pkg/_version.py", "pkg/x.npy", "protos/a_pb2.py", "train.py: import pkg\nfrom protos import (\n  a_pb2)",
         "local.py"],
        {".gitignore", "pkg/__init__.py", "pkg/_version.py", "protos/a_pb2.py", "train.py"},
        {"pkg/__init__.py", "pkg/_version.py"},
    ),
    "an __init__.py that git ignores, of a package that is imported": (
        [".gitignore: __init__.py", "pkg/__init__.py", "pkg/a.py", "other/__init__.py", "main.py: from pkg import a"],
        {".gitignore", "pkg/__init__.py", "pkg/a.py", "main.py", "other"}, {"pkg/__init__.py", "pkg/a.py"},
    ),
    "folders named dist and build in a package": (
        ["pkg/dist/rank.py", "pkg/build/lib/a.py"], {"pkg/dist/rank.py", "pkg/build/lib/a.py"},
        {"pkg/dist/rank.py", "pkg/build/lib/a.py"},
    ),
    "modules of node": (["node_modules/x/y.js", "pkg/__init__.py"], {"pkg/__init__.py"}, {"pkg/__init__.py"}),
    "a name that only sounds like a key": (
        ["pkg/service_account.py", "pkg/client_secrets_loader.py", "pkg/client_secret.json"],
        {"pkg/service_account.py", "pkg/client_secrets_loader.py"},
        {"pkg/service_account.py", "pkg/client_secrets_loader.py"},
    ),
    "a key by its own name, or by that of what the link leads to": (
        ["key.txt", "pkg/id_rsa -> ../key.txt", "pkg/mine -> ../.env", ".env", "pkg/a.py"], {"key.txt", "pkg/a.py"},
        {"pkg/a.py"},
    ),
    "data that git ignores": (
        [".gitignore: raw/", "pkg/__init__.py", "pkg/raw/1.jpg", "pkg/vocab.gz"],
        {".gitignore", "pkg/__init__.py", "pkg/vocab.gz", "pkg/raw"}, {"pkg/__init__.py", "pkg/vocab.gz"},
    ),
    "folders without files": (
        [".gitignore: logs/\n.cache/", "logs/old.txt", ".cache/x", "results/today/", "pkg/a.py"],
        {".gitignore", "logs", "results/today", "results", "pkg/a.py"}, {"pkg/a.py"},
    ),
    "links to folders inside": (
        ["data/x.csv", "shared/__init__.py", "pkg/__init__.py", "pkg/data -> ../data", "pkg/common -> ../shared",
         "latest -> data"],
        {"data/x.csv", "shared/__init__.py", "pkg/__init__.py", "pkg/data -> ../data", "pkg/common -> ../shared",
         "latest -> data"},
        {"pkg/__init__.py", "pkg/data/x.csv", "pkg/common/__init__.py"},
    ),
    "links to folders outside": (
        ["../other/mod.py", "../big/x.npy", "pkg/__init__.py", "pkg/other -> {root}/../other", "pkg/big -> ../../big",
         "pkg/there -> /scratch/of/the/host", "pkg/broken -> nowhere"],
        {"pkg/__init__.py", "pkg/other/mod.py", "pkg/big -> OUT/big", "pkg/there -> /scratch/of/the/host"},
        {"pkg/__init__.py", "pkg/other/mod.py"},
    ),
    "hidden folders and caches": (
        [".git/config", ".idea/x.xml", "pkg/__init__.py", "pkg/.templates/a.html",
         "pkg/.ipynb_checkpoints/a.py", "__pycache__/a.pyc"],
        {"pkg/__init__.py"}, {"pkg/__init__.py", "pkg/.templates/a.html"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "by_command", "by_function"), ROWS.values(), ids=ROWS)
def test_a_command_and_a_function_have_the_same_rules(tmp_path, monkeypatch, files, by_command, by_function):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = tmp_path / "out" / "project"
    lay_out(root, [each for each in files if not each.startswith(".git/")])
    monkeypatch.syspath_prepend(str(root))

    found = Project(root).contents()
    links = {f"{name} -> {target.replace(str(tmp_path / 'out'), 'OUT')}" for name, target in found.links}
    assert {*(each.name for each in found.files), *found.folders, *links} == by_command
    assert sent("pkg") == by_function


# The files of a repository, what a command's stderr says, what is said of it, and how the one way is followed.
MISSED = {
    "data that git ignores": (
        [".gitignore: data/", "data/x.csv", "data/y.csv"], "open: data/x.csv: No such file", "git ignores it",
        "git add --force {root}/data/x.csv", {"data/x.csv"},
    ),
    "the same by its path there": (
        [".gitignore: data/", "data/x.csv"], "FileNotFoundError: '/r/jobs/1a/work/data/x.csv' not found",
        "git ignores it", "git add --force {root}/data/x.csv", {"data/x.csv"},
    ),
    "code that git ignores and no import names": (
        [".gitignore: plugins/", "plugins/a.py"], "ModuleNotFoundError: No module named 'plugins.a'", "git ignores it",
        "git add --force {root}/plugins", {"plugins/a.py"},
    ),
    "an environment": (
        ["env/pyvenv.cfg", "env/lib/a.py"], "ModuleNotFoundError: No module named 'env'", "it is a virtual environment",
        None, set(),
    ),
    "a key": (
        ["server/credentials.json"], "No such file or directory: 'server/credentials.json'", "looks like a key",
        None, set(),
    ),
    "a link out of the project": (
        ["../big/x.npy", "big -> ../big"], "cannot open big/x.npy", "it is a link to", "rm big && cp -r ../big .",
        {"big/x.npy"},
    ),
    "a module where no import looks": (
        ["lib/mine.py", "train.py"], "No module named 'mine'", "add --env PYTHONPATH=lib ", None, set(),
    ),
    "a module beside the project": (
        ["../src/mine.py", "train.py"], "No module named 'mine'", "and add --env PYTHONPATH=src ", None,
        set(),
    ),
    "a module that is nowhere, of a package that is found": (
        ["src/mine/__init__.py"], "No module named 'mine.b'", "", None, set(),
    ),
    "what was sent": (["a.csv"], "cannot open a.csv", "", None, set()),
}  # fmt: skip


@pytest.mark.parametrize(("files", "stderr", "said", "way", "then"), MISSED.values(), ids=MISSED)
def test_what_a_command_misses_and_is_here_is_named_with_its_rule_and_a_way_that_works(
    tmp_path, monkeypatch, files, stderr, said, way, then
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = tmp_path / "out" / "project"
    lay_out(root, files)
    whole(root)

    told = explain.of_command([stderr], Project(root)) or ""

    assert said.format(root=root) in told and bool(told) == bool(said)
    if way:
        way = shlex.join(way.format(root=root).split(" ", 3)) if way.startswith("git") else way
        assert way in told or not way.startswith("git")
        subprocess.run(way, shell=True, cwd=root, check=True)
        assert then <= {each.name for each in Project(root).contents().files}


def test_a_file_of_a_package_that_a_function_misses_is_named_with_its_rule(project, monkeypatch):
    whole(project)
    lay_out(project, [".gitignore: raw/", "mine/__init__.py", "mine/raw/x.csv", "mine/.env", "assets/y.csv"])
    sources = f"/r/sources/{'a' * 64}"

    told = explain.of_file(f"{sources}/mine/raw/x.csv", "h") or ""
    assert f"it; to send it: git add --force {shlex.quote(f'{project}/mine/raw/x.csv')}" in told
    assert "it looks like a key or a password" in (explain.of_file(f"{sources}/mine/.env", "h") or "")
    assert f"clusterfn.File('{project}/assets/y.csv')" in (explain.of_file(f"{sources}/assets/y.csv", "h") or "")
    monkeypatch.chdir(project)
    assert "clusterfn.File('assets/y.csv')" in (explain.of_file("/r/jobs/1a/work/assets/y.csv", "h") or "")
    assert explain.of_file(f"{sources}/mine/nowhere.csv", "h") is None
    # A folder for what the function writes is on this machine alone.
    assert "makedirs('assets', exist_ok=True)" in (explain.of_file("assets/new.pt", "h") or "")
    assert f"{project}/assets is not there beside the code" in (explain.of_file(f"{sources}/assets/new.pt", "h") or "")
    assert explain.of_file("nowhere/new.pt", "h") is explain.of_file("new.pt", "h") is None
    (project / ".git/HEAD").unlink()
    (project / "mine/b.py").touch()  # what git has said before no longer holds
    assert "clusterfn.File(" in (explain.of_file(f"{sources}/mine/raw/x.csv", "h") or "")
    assert explain.of_command(["cannot open mine/raw/x.csv"], Project(project)) is None


def test_a_project_that_is_too_large_is_refused_with_the_largest_files_named(tmp_path):
    for name, size in (("small.bin", 1 << 20), ("large.bin", 200 << 20)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)

    with pytest.raises(ConfigError, match=r"has files larger than 200 MB") as caught:
        Project(tmp_path).contents()
    assert "large.bin" in caught.value.evidence[0] and ".gitignore" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("files", "roots", "scripts"),
    [
        (["pyproject.toml: [project]\nname = 'a'\nscripts = {go = 'a.b:c'}", "src/a/b.py"], ("src",),
         {"go": "a.b:c"}),
        (["setup.py: scripts = ['go=src.b:c']", "src/__init__.py", "src/b.py"], (".",), {"go": "src.b:c"}),
        (["pyproject.toml: [project]\nname = 'a'", "a/b.py", "src/README"], (".",), {}),
        (["pyproject.toml: [tool.ruff]", "src/a.py"], (), {}), (["src/a.py"], (), {}),
        (["setup.py: {", "a.py"], (".",), {}),
        (["setup.cfg: [options]\n[options.entry_points]\nconsole_scripts =\n  go = a:b", "src/a.py"], ("src",),
         {"go": "a:b"}),
        (["setup.py: setup(entry_points={'console_scripts': ['go=a:b']})", "a.py"], (".",), {"go": "a:b"}),
        (["pyproject.toml: [tool.poetry]\nscripts = {go = 'a:b'}", "src/a.py"], ("src",), {"go": "a:b"}),
    ],
)  # fmt: skip
def test_where_imports_look_in_a_project_is_what_its_own_files_say(tmp_path, files, roots, scripts):
    lay_out(tmp_path, files)

    assert Project(tmp_path).declared() == (roots, scripts)


def test_editable_packages_travel_with_a_command_by_where_they_are(tmp_path, monkeypatch):
    """One is in the project, and has metadata; of two elsewhere, the code imports one."""
    root = tmp_path / "project"
    lay_out(root, ["train.py: import inside, outside", "libs/inside/pyproject.toml: [project]\nname = 'inside'",
                   "libs/inside/src/inside.py", "../outside/outside.py", "../unused/unused.py"])  # fmt: skip
    for folder in (root / "libs/inside", tmp_path / "outside", tmp_path / "unused"):
        info = tmp_path / "site" / f"{folder.name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1\n")
        (info / "direct_url.json").write_text(json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}}))
        (folder / "pyproject.toml").write_text(f"[project]\nname = '{folder.name}'\n")
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    found = Project(root).contents()

    assert found.imports == ("outside",)
    assert "libs/inside/src/inside-1.dist-info/METADATA" in {each.name for each in found.files}
    assert Project(root).declared().roots == ("libs/inside/src",)


def test_of_a_file_that_grows_while_it_is_sent_the_bytes_that_were_listed_travel(tmp_path):
    (tmp_path / "log.txt").write_text("first")
    upload = shipment(Directory(tmp_path))
    with (tmp_path / "log.txt").open("a") as file:
        file.write(" and more")

    (member,) = upload.contents.files
    data = b"".join(pieces_of(FileHead(member.path, member.facts.st_size)))
    assert data == b"first" and upload.crcs == (zlib.crc32(data),)
