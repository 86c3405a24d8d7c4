"""What clusterfn reads in a file, beside what the tools that the file was written for read in it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.files import others
from benchmarks.files.collect import kind_of
from benchmarks.files.others import Rejected
from clusterfn.environment import environment_files, lock
from clusterfn.environment.conda_solver import SolveTarget
from clusterfn.environment.python_source import nearest_minors
from clusterfn.environment.specification import Specification
from clusterfn.environment.wheels import WheelFinder
from clusterfn.errors import ClusterfnError

SAME, TOLD, BOTH, RIGHTLY = "same", "same, and told", "both reject", "rejected rightly"
WRONGLY, DIFFERS, TRACEBACK = "rejected wrongly", "differs silently", "traceback"
UNREACHABLE = "not reachable here"
GOOD = (SAME, TOLD, BOTH, RIGHTLY, UNREACHABLE)
HOST = SolveTarget("linux-64", "2.36", None, "3.11")
# A rejection is right if what it says is so, which the other reader confirms, and if it says what to do.
_TRUE: list[tuple[str, Callable[[Path, str], bool]]] = [
    (r"has no \[project\] table", lambda path, _: not re.search(r"^\[project\]", path.read_text(), re.MULTILINE)),
    (r"(is|comes from) a repository", lambda path, _: "git+" in _all_text(path) or "git =" in path.read_text()),
    (r"is the folder in which conda built", lambda path, _: "file:///" in path.read_text(errors="replace")),
    (r'unknown key "variables"', lambda path, _: "variables:" in path.read_text()),
    (r"has no \S+ beside it", lambda path, _: not path.with_name("pyproject.toml").exists()),
    (r"only available as source", lambda path, _: True),
    (r"lists no packages", lambda path, _: not others.requirements(path)),
    (r"has no SHA-256", lambda path, _: True),
    (r"option behind the requirement", lambda path, _: bool(others.uv_rejects(path))),
    (r"neither a requirement nor", lambda path, _: True),  # pip ignores such words
    (r"names a folder that has neither", lambda path, _: not (path.parent / "setup.py").exists()),
    (r"is out of date: pyproject.toml has changed", lambda path, _: True),  # is uv's own word
]  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What came of a file, and why it is not simply the same."""

    word: str
    why: str = ""


def judge(path: Path) -> Verdict:
    """Read a file by clusterfn and by another tool, and compare."""
    kind = kind_of(path.name) or kind_of("/".join(path.parts[-2:]))
    if kind == "environment.yml" and re.search(r"^package:", path.read_text(), re.MULTILINE):
        kind = "conda-lock"  # under another name
    try:
        theirs: object = THEIRS[kind](path)
    except Rejected as rejected:
        theirs = rejected
    try:
        ours, told = _OURS[kind](path)
    except ClusterfnError as error:
        return _of_rejection(path, error, theirs)
    except Rejected as rejected:  # pip does not read what uv is given
        return _of_accepted(path, kind, rejected)
    except Exception:  # what a user would see as one
        return Verdict(TRACEBACK, traceback.format_exc()[-1500:])
    if isinstance(theirs, Rejected):
        return _of_accepted(path, kind, theirs)
    if ours == theirs:
        return Verdict(TOLD if told else SAME, " | ".join(told))
    return Verdict(DIFFERS, _difference(ours, theirs))


def _of_accepted(path: Path, kind: str, theirs: Rejected) -> Verdict:
    """Judge what clusterfn hands on to uv, which says then what is wrong with the line."""
    if kind == "requirements.txt":
        said = others.uv_rejects(path)
    elif kind == "environment.yml":
        section = environment_files.read_file(path).wheels
        said = others.uv_rejects_lines(section.lines, path.parent) if section else ""
    else:
        said = ""
    return Verdict(BOTH if said else DIFFERS, f"{said} | the other reader: {theirs}")


def _of_rejection(path: Path, said: ClusterfnError, theirs: object) -> Verdict:
    text = f"{said.message} | {' | '.join(map(str, said.evidence))} | next: {said.hint}"
    if re.search(r"index cannot be reached|Git operation failed|not resolve host|service not known", text):
        return Verdict(UNREACHABLE, text)
    if isinstance(theirs, Rejected):
        return Verdict(BOTH, f"{text} | the other reader: {theirs}")
    true = any(re.search(pattern, text) and holds(path, text) for pattern, holds in _TRUE)
    return Verdict(RIGHTLY if true and said.hint else WRONGLY, text)


def _difference(ours: object, theirs: object) -> str:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        ours, theirs = (set(f"{name} {version}" for name, version in each.items()) for each in (ours, theirs))
    if isinstance(ours, (tuple, list)) and isinstance(theirs, (tuple, list)):
        pairs = [(one, other) for one, other in zip(ours, theirs) if one != other]
        return "; ".join(_difference(one, other) for one, other in pairs)
    if isinstance(ours, set) and isinstance(theirs, set):
        return f"only ours: {sorted(ours - theirs)[:8]}; only theirs: {sorted(theirs - ours)[:8]}"
    return f"{ours} | {theirs}"[:500]


def _all_text(path: Path) -> str:
    """Return the text of a file and of the files of requirements below its repository."""
    top = next((each for each in path.parents if each.parent.name == "texts"), path.parent)
    beside = [each for pattern in ("*.txt", "pyproject.toml") for each in top.rglob(pattern) if each.is_file()]
    return "\n".join(each.read_text(errors="replace") for each in [path, *beside])


def _requirements(path: Path) -> tuple[set[str], list[str]]:
    spec = environment_files.read_file(path)
    project = spec.project
    assert project is not None
    found = others.lines(project.lines, path.parent)
    return found | _not_among(spec, found), list(spec.sentences)


def _not_among(spec: Specification, found: set[str]) -> set[str]:
    """Return what the lines for uv do not say, of what clusterfn itself decides by."""
    names = {re.split(r"[\[ ]", each.partition(" ")[2])[0] for each in found if each.startswith("requirement")}
    return {f"decided by: {each.text}" for each in spec.pip if not each.is_address and each.name not in names
            and not re.search(r"\.(whl|zip|gz)$|://", each.text)}  # fmt: skip


def _environment_yml(path: Path) -> tuple[tuple[set[str], set[str]], list[str]]:
    spec = environment_files.read_file(path)
    conda = {others.conda_package(each.text) for each in spec.conda}
    channels = {f"channel {each}" for each in spec.channels}
    section = spec.wheels
    pip = section.lines if section else ()
    found = others.lines(pip, path.parent) if pip else set()
    return (conda | channels, found | _not_among(spec, found)), list(spec.sentences)


def _their_environment_yml(path: Path) -> tuple[set[str], set[str]]:
    """Return what conda reads, less what clusterfn says that it leaves out of an export."""
    conda, pip = others.environment_yml(path)
    try:
        spec = environment_files.read_file(path)
    except Exception:  # is judged elsewhere
        return conda, pip
    said = " ".join(spec.sentences)
    if spec.exported:
        left_out = re.findall(r"belong to Windows or macOS: ([^|]*)", said)
        names = set(left_out[0].split(", ")) if left_out else set()
        conda = {each for each in conda if not each.startswith("conda ") or _name(each) not in names}
        if "build strings" in said:
            channels_ = {each for each in conda if not each.startswith("conda ")}
            conda = channels_ | {others.conda_package(_without_build(each)) for each in conda - channels_}
    if not any(each.startswith("channel") for each in conda):
        conda |= {f"channel {each}" for each in spec.channels}  # conda's own settings, then conda-forge
    named = {each.partition("::")[0][len("conda ") :] for each in conda if "::" in each}
    return conda | {f"channel {each}" for each in named if each}, pip


def _name(line: str) -> str:
    return line.partition("::")[2].split(" ")[0]


def _without_build(line: str) -> str:
    """Return conda's text of a package without its build."""
    channel, _, rest = line[len("conda ") :].partition("::")
    words = rest.split(" ")
    return (f"{channel}::" if channel else "") + " ".join(words[:2])


def _pyproject(path: Path, extras: Sequence[str] = (), groups: Sequence[str] = ()) -> tuple[set[str], list[str]]:
    parts = [*extras, *(f"group:{each}" for each in groups)]
    spec = environment_files.read_file(path, parts)
    assert spec.project is not None
    python = {f"python {spec.project.requires_python}"}
    return {others.spelled(each.text) for each in spec.pip} | python, list(spec.sentences)


def _with_all_parts(path: Path) -> tuple[list[str], list[str]]:
    """Return all extras and groups of a pyproject.toml."""
    tree = others._toml(path)
    return sorted(tree.get("project", {}).get("optional-dependencies", {})), sorted(tree.get("dependency-groups", {}))


def _pyproject_ours(path: Path) -> tuple[list[set[str]], list[str]]:
    plain, told = _pyproject(path)
    extras, groups = _with_all_parts(path)
    return [plain, *(_pyproject(path, extras=[each])[0] for each in extras),
            *(_pyproject(path, groups=[each])[0] for each in groups)], told  # fmt: skip


def _pyproject_theirs(path: Path) -> list[set[str]]:
    plain = others.pyproject(path)
    extras, groups = _with_all_parts(path)
    named = [others.canonicalize_name(each) for each in extras]
    return [plain, *(others.pyproject(path, extras=[each]) for each in named),
            *(others.pyproject(path, groups=[each]) for each in groups)]  # fmt: skip


def _of_lock(path: Path) -> tuple[dict[str, str], list[str]]:
    spec = environment_files.read_file(path)
    assert spec.project is not None
    told: list[str] = []
    wheels = WheelFinder(spec, spec.project, HOST, told.append).find(f"{nearest_minors(spec.project, 11)[0]}.7")
    return {each.name: each.version for each in wheels}, told


def _conda_lock(path: Path) -> tuple[set[str], list[str]]:
    spec = environment_files.read_file(path)
    assert spec.given_lock is not None
    found = lock.read_lock(spec.given_lock)
    return {f"{each.platform} {each.manager} {each.name} {each.version} {each.url}" for each in found.packages}, []


_OURS: dict[str, Callable[[Path], tuple[object, list[str]]]] = {
    "requirements.txt": _requirements, "environment.yml": _environment_yml, "pyproject.toml": _pyproject_ours,
    "uv.lock": _of_lock, "pylock.toml": _of_lock, "conda-lock": _conda_lock,
}  # fmt: skip
THEIRS: dict[str, Callable[[Path], object]] = {
    "requirements.txt": others.requirements, "environment.yml": _their_environment_yml,
    "pyproject.toml": _pyproject_theirs, "uv.lock": others.uv_lock, "pylock.toml": others.pylock,
    "conda-lock": others.conda_lock,
}  # fmt: skip
