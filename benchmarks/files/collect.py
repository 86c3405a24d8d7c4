"""The files that are read: their addresses are in addresses.txt, and their texts in .files, which git does not have.

`python -m benchmarks.files choose FOLDER` writes addresses.txt from clones below FOLDER, each named owner+name.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".files"
ADDRESSES = HERE / "addresses.txt"
# kind -> the paths that are of it, and how many of one repository are taken
KINDS = {
    "conda-lock": (r"(.*/)?([\w.-]*\.)?conda-lock\.ya?ml", 3),
    "pylock.toml": (r"(.*/)?pylock(\.[^./]+)?\.toml", 3),
    "uv.lock": (r"(.*/)?uv\.lock", 2),
    "environment.yml": (
        r"(.*/)?([\w.-]*[_-])?(environment|env|conda)([_-][\w.-]*)?\.ya?ml|(.*/)?environments?/[^/]+\.ya?ml", 4
    ),
    "pyproject.toml": (r"(.*/)?pyproject\.toml", 2),
    "requirements.txt": (
        r"(.*/)?([\w.-]*[_-])?(requirements?|reqs)([_.-][\w.-]*)?\.txt|(.*/)?requirements/[^/]+\.txt", 5
    ),
}  # fmt: skip
# Of a workflow's or a service's, not of Python's.
_NOT_MEANT = re.compile(
    r"(^|/)(\.github|\.circleci|node_modules|vendor|third_party|config|configs|conf|k8s|docker-compose)/"
    r"|config[^/]*\.ya?ml$|cluster_env|template"
)
# What a file may name: other files of requirements, and the user's own packages.
_NAMED = re.compile(
    r"(.*/)?(setup\.(py|cfg)|pyproject\.toml|[\w.-]*(requ|constr|dep|dev|test|doc|base|pip)[\w.-]*\.(txt|in))"
)
_LARGEST = 3_000_000


@dataclass(frozen=True)
class Address:
    """Where a file is: "owner/name", a commit with its day, and a path."""

    repository: str
    commit: str
    day: str
    path: str

    @property
    def kind(self) -> str:
        """What it is by its name."""
        return kind_of(self.path)

    @property
    def file(self) -> Path:
        """Its text here, with its neighbours beside it."""
        return folder_of(self.repository) / self.path


def folder_of(repository: str) -> Path:
    """Return the folder below which a repository's files are."""
    return CACHE / "texts" / repository.replace("/", "+")


def kind_of(path: str) -> str:
    """Return the kind of a path; "" for none."""
    if _NOT_MEANT.search(path):
        return ""
    return next((kind for kind, (pattern, _) in KINDS.items() if re.fullmatch(pattern, path)), "")


def addresses(path: Path = ADDRESSES) -> list[Address]:
    """Return what addresses.txt lists."""
    found = []
    head = ("", "", "")
    for line in path.read_text().splitlines():
        if line.startswith("  "):
            found += [Address(*head, line.strip())] if kind_of(line.strip()) else []
        elif line and not line.startswith("#"):
            head = (*line.split(),)  # type: ignore[assignment]
    return found


def choose(clones: Path) -> str:
    """Write addresses.txt from clones: a few files of each kind from each, those at the top first."""
    made: dict[str, str] = {}
    for each in addresses() if ADDRESSES.exists() else ():  # of clones that are here no longer
        head = f"{each.repository} {each.commit} {each.day}"
        made[each.repository] = f"{made.get(each.repository, head)}\n  {each.path}"
    for folder in clones.iterdir():
        git = _git_directory(folder)
        if git is None:
            continue
        commit, day = _git(git, "log", "-1", "--format=%H %cs", "HEAD").decode().split()
        taken: dict[str, list[str]] = {}
        sizes = {path: size for path, (_, size) in _tree(git, commit).items()}
        for path in sorted(sizes, key=lambda each: (each.count("/"), each)):
            kind = kind_of(path)
            if kind and 0 < sizes[path] < _LARGEST and len(taken.setdefault(kind, [])) < KINDS[kind][1]:
                taken[kind].append(path)
        paths = sorted(path for paths in taken.values() for path in paths)
        repository = folder.name.replace("+", "/", 1)
        if paths:
            made[repository] = "\n".join([f"{repository} {commit} {day}", *(f"  {path}" for path in paths)])
    head = "# owner/name, commit, its day; below it the files that are read"
    ADDRESSES.write_text("\n".join([head, *(made[name] for name in sorted(made, key=str.lower)), ""]))
    found = addresses()
    return f"{len(found)} files of {len({each.repository for each in found})} repositories"


def bring(clones: Path | None) -> None:
    """Bring the texts here, from clones or from where they were published."""
    wanted: dict[str, list[Address]] = {}
    for each in addresses():
        wanted.setdefault(each.repository, []).append(each)
    for repository, files in wanted.items():
        if all(each.file.exists() for each in files):
            continue
        git = _git_directory(clones / repository.replace("/", "+")) if clones else None
        if git is None and clones:  # those that are not among them stay away
            continue
        git = git or _cloned(repository, files[0].commit)
        _export(git, files[0].commit, [each.path for each in files], folder_of(repository))


def _git_directory(folder: Path) -> Path | None:
    return next((each for each in (folder / "repo" / ".git", folder / "repo", folder / ".git", folder)
                 if (each / "HEAD").is_file()), None)  # fmt: skip


def _cloned(repository: str, commit: str) -> Path:
    git = CACHE / "clones" / repository.replace("/", "+")
    if not (git / "HEAD").exists():
        subprocess.run(["git", "init", "-q", "--bare", str(git)], check=True)
        _git(git, "fetch", "-q", "--depth=1", f"https://github.com/{repository}", commit)
    return git


def _git(git: Path, *words: str, given: bytes = b"") -> bytes:
    argv = ["git", f"--git-dir={git}", "-c", "safe.directory=*", *words]
    return subprocess.run(argv, check=True, capture_output=True, input=given).stdout


def _tree(git: Path, commit: str) -> Mapping[str, tuple[str, int]]:
    """Return path -> hash and size; a submodule has size -1."""
    found = {}
    for line in _git(git, "ls-tree", "-r", "-l", "-z", commit).decode(errors="replace").split("\0")[:-1]:
        facts, _, path = line.partition("\t")
        mode, _, digest, size = facts.split()
        if mode != "120000":
            found[path] = (digest, int(size) if size.isdigit() else -1)
    return found


def _export(git: Path, commit: str, paths: list[str], folder: Path) -> None:
    """Write files, what they may name, and the folders of submodules."""
    tree = _tree(git, commit)
    beside = {path.rpartition("/")[0] for path in paths}
    for path, (digest, size) in tree.items():
        if size < 0:
            (folder / path).mkdir(parents=True, exist_ok=True)
        near = path.endswith(".txt") and path.rpartition("/")[0] in beside
        if path in paths or (size < 200_000 and (near or _NAMED.fullmatch(path))):
            try:
                data = _git(git, "cat-file", "blob", digest)
            except subprocess.CalledProcessError:  # a snapshot may lack some
                continue
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)


def lines_of(found: list[Address]) -> Iterator[str]:
    """Yield how many there are of each kind and year."""
    for kind in KINDS:
        years = sorted(each.day[:4] for each in found if each.kind == kind)
        if years:
            yield f"{kind}: {len(years)}, {', '.join(f'{year}: {years.count(year)}' for year in sorted(set(years)))}"
