"""Say why a job misses a file or a module that is on this machine, and the one way to send it.

The rule comes from the listing; of an error, only the name is read.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterfn.errors import ClusterfnError
from clusterfn.packing.project import rules
from clusterfn.packing.project.listing import Exclusion, Listing, is_below, is_foreign
from clusterfn.packing.project.model import Project
from clusterfn.packing.project.modules import places

_IN_WORK = re.compile(r".*/jobs/.*/work/(.+)", re.DOTALL)
_IN_SOURCES = re.compile(r".*/sources/[0-9a-f]{64}/(.+)", re.DOTALL)
_MISSING = re.compile(r"No such file|not found|cannot (?:find|open|access)|does not exist", re.IGNORECASE)
_NO_MODULE = re.compile(r"No module named '?([\w.]+)")
_WORDS = re.compile(r"[^\s'\"`,;:()\[\]]+")


def of_file(file: object, host: str) -> str | None:
    """Say how to send a file that a function has not found; None if it is not on this machine."""
    if not isinstance(file, (str, os.PathLike)):
        return None
    name = os.fspath(file)
    if in_work := _IN_WORK.fullmatch(name):
        name = in_work[1]
    in_sources = _IN_SOURCES.fullmatch(name)
    if in_sources:
        name = _beside_code(in_sources[1])
    if not os.path.exists(name):
        return _of_folder(os.path.dirname(name), host, bool(in_sources)) if name else None
    left = _left_of_packages(in_sources[1].partition("/")[0], name) if in_sources else None
    if left is not None:
        return f"on {host}; {name} is on this machine, but was not sent: {rules.explain(left)}"
    where, here = f"in the job's own folder on {host}", "it is in your working directory"
    if os.path.isabs(name):
        where, here = f"on {host}", f"{name if in_sources else 'it'} is on this machine"
    kind = "Directory" if os.path.isdir(name) else "File"
    return f"{where}; {here}: pass clusterfn.{kind}({name!r}) as an argument"


def _beside_code(name: str) -> str:
    """Return where a file beside the code that was sent is on this machine, or would be; "" if it is in a package."""
    paths = [os.path.join(each, name) for each in sys.path]
    is_sent = bool(places(name.partition("/")[0]))
    near = () if is_sent else (each for each in paths if os.path.isdir(os.path.dirname(each)) and "/" in name)
    return next(filter(os.path.exists, paths), next(iter(near), ""))


def _of_folder(folder: str, host: str, is_beside_code: bool) -> str | None:
    """Say that the job has no folder for a file that it writes; None if this machine has none either."""
    if os.path.normpath(folder or ".") == "." or os.path.isabs(folder) != is_beside_code or not os.path.isdir(folder):
        return None
    if is_beside_code:
        return f"on {host}; {folder} is not there beside the code: write to a relative path, and name it in outputs="
    return f"in the job's own folder on {host}, which begins empty: call os.makedirs({folder!r}, exist_ok=True) there"


def in_text(text: str, host: str, *, paths_alone: bool = False) -> str | None:
    """Say the same of the first file that is in the text of an error, or of the first relative path with a slash."""
    words = (each.rstrip(".") for each in _WORDS.findall(text))
    names = (each for each in words if "/" in each or not paths_alone and ("." in each or f"'{each}'" in text))
    hints = (of_file(each, host) for each in names if each.strip("./") and not (paths_alone and os.path.isabs(each)))
    return next(filter(None, hints), None)


def of_module(name: str) -> str | None:
    """Say why an own module was not sent with a function, or where one of this name is; None if nowhere."""
    top, *_ = parts = name.split(".")
    for place in places(top):
        left = _left_of_packages(top, os.path.join(os.path.dirname(place), *parts))
        if left is not None:
            return f"{left.path} was not sent: {rules.explain(left)}"
    if places(top):
        return (
            f"{top} is your own module, but was not sent: clusterfn sends only modules that an import statement names; "
            f"write `import {top}` in the function"
        )
    main = getattr(sys.modules["__main__"], "__file__", None)
    near = next(_near(top, [Path(), *([Path(main).parent] if main else [])]), None)
    if near is None:
        return None
    folder = os.path.relpath(os.path.dirname(near))
    return (
        f"{os.path.relpath(near)} is on this machine: clusterfn sends modules that your program itself can import, so "
        f"add {folder} to PYTHONPATH or sys.path here"
    )


def of_command(lines: Sequence[str], project: Project) -> str | None:
    """Say why a command misses a file or a module that a line of its stderr names; None if that is not here."""
    try:
        listing = project.listing()
    except (ClusterfnError, OSError):
        # It has changed since the command was sent. The command's own error counts.
        return None
    for line in lines:
        if module := _NO_MODULE.search(line):
            if said := _of_module_in(project, listing, module[1]):
                return said
        elif _MISSING.search(line):
            for word in _WORDS.findall(line):
                in_work = _IN_WORK.fullmatch(word)
                path = os.path.normpath(os.path.join(project, in_work[1] if in_work else word))
                if left := _first(listing.left_out, path):
                    return f"{left.name} is here, but was not sent: {rules.explain(left)}"
    return None


def _of_module_in(project: Project, listing: Listing, name: str) -> str | None:
    top = name.partition(".")[0]
    near = next(_near(top, [Path(project)]), None)
    paths = [os.path.join(project, root, *name.split(".")) for root in ("", *project.declared().roots)]
    if left := next(filter(None, (_first(listing.left_out, each) for each in (*paths, near or paths[0]))), None):
        return f"{left.name} is here, but was not sent: {rules.explain(left)}"
    # Python names `a.b` only if it has found `a`.
    if near is None or "." in name:
        return None
    above = os.path.commonpath([near, project])
    place = os.path.relpath(os.path.dirname(near), above)
    add = f"add --env PYTHONPATH={place} (in Python: env={{'PYTHONPATH': {place!r}}})"
    if above != str(project):
        return f"{near} is outside of the project {project}: run the command from {above}, and {add}"
    return f"{os.path.relpath(near, project)} is sent, but no import looks there: {add}"


def _first(left_out: Sequence[Exclusion], path: str) -> Exclusion | None:
    """Return what leaves out this path, or the module that has it."""
    for each in left_out:
        if is_below(path, each.path) or is_below(path, each.path.removesuffix(".py")):
            is_file = each.rule == "git" and os.path.exists(path)
            return each._replace(name=path[len(each.path) - len(each.name) :], path=path) if is_file else each
    return None


def _left_of_packages(top: str, path: str) -> Exclusion | None:
    # The error that is explained counts, and not that git or the file system says nothing now.
    with contextlib.suppress(ClusterfnError, OSError):
        listings = (Listing(place, package=True) for place in places(top) if os.path.isdir(place))
        return next(filter(None, (_first(each.left_out, path) for each in listings)), None)
    return None


def _near(top: str, folders: Sequence[Path]) -> Iterator[str]:
    """Yield where a module of this name is, in these folders, beside them, and one below."""
    # The working directory may have been removed.
    with contextlib.suppress(OSError):
        for folder in dict.fromkeys(path for each in folders for path in (each.resolve(), each.resolve().parent)):
            for path in (path for below in (top, f"*/{top}") for path in sorted(folder.glob(f"{below}*"))):
                is_one = path.name == f"{top}.py" or (path.name == top and (path / "__init__.py").is_file())
                if is_one and not is_foreign(os.path.realpath(path)):
                    yield str(path)
