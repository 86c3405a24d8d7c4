"""Say why a job misses a file or a module that is on this machine, and the one way to send it.

The rule comes from the listing; of an error, only the name is read.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
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
    paths = [os.path.join(folder, name) for folder in sys.path]
    is_sent = bool(places(name.partition("/")[0]))
    near = () if is_sent else (path for path in paths if os.path.isdir(os.path.dirname(path)) and "/" in name)
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
    words = (word.rstrip(".") for word in _WORDS.findall(text))
    names = (word for word in words if "/" in word or not paths_alone and ("." in word or f"'{word}'" in text))
    hints = (of_file(name, host) for name in names if name.strip("./") and not (paths_alone and os.path.isabs(name)))
    return next(filter(None, hints), None)


def of_module(name: str) -> str | None:
    """Say why an own module was not sent with a function, or where one of this name is; None if nowhere."""
    top = name.partition(".")[0]
    found = places(top)
    for place in found:
        if left := _left_of_packages(top, os.path.join(os.path.dirname(place), *name.split("."))):
            return f"{left.path} was not sent: {rules.explain(left)}"
    if found:
        return (
            f"{top} is your own module, but was not sent: clusterfn sends only modules that an import statement names; "
            f"write `import {top}` in the function"
        )
    main = getattr(sys.modules["__main__"], "__file__", None)
    near = _near(top, [Path(), *([Path(main).parent] if main else [])])
    return near and (
        f"{os.path.relpath(near)} is on this machine: clusterfn sends modules that your program itself can import, so "
        f"add {os.path.relpath(os.path.dirname(near))} to PYTHONPATH or sys.path here"
    )


def of_command(lines: Sequence[str], project: Project) -> str | None:
    """Say why a command misses a file or a module that a line of its stderr names; None if that is not here."""
    try:
        left_out = project.listing().left_out
    except (ClusterfnError, OSError):
        # It has changed since the command was sent. The command's own error counts.
        return None
    for line in lines:
        module, words = _NO_MODULE.search(line), _WORDS.findall(line) if _MISSING.search(line) else []
        paths = [os.path.normpath(os.path.join(project, _IN_WORK.sub(r"\1", word))) for word in words]
        if module:
            roots = ("", *project.declared().roots)
            paths = [os.path.join(project, root, *module[1].split(".")) for root in roots]
        top = module[1].partition(".")[0] if module else ""
        near = _near(top, [Path(project)]) if module else None
        if left := next(filter(None, (_first(left_out, path) for path in [*paths, *filter(None, [near])])), None):
            return f"{left.name} is here, but was not sent: {rules.explain(left)}"
        # Python names `a.b` only if it has found `a`.
        if near and module and "." not in module[1]:
            return _of_module_elsewhere(near, str(project))
    return None


def _of_module_elsewhere(near: str, project: str) -> str:
    above = os.path.commonpath([near, project])
    place = os.path.relpath(os.path.dirname(near), above)
    add = f"add --env PYTHONPATH={place} (in Python: env={{'PYTHONPATH': {place!r}}})"
    if above != project:
        return f"{near} is outside of the project {project}: run the command from {above}, and {add}"
    return f"{os.path.relpath(near, project)} is sent, but no import looks there: {add}"


def _first(left_out: Sequence[Exclusion], path: str) -> Exclusion | None:
    """Return what leaves out this path, or the module that has it."""
    for left in left_out:
        if is_below(path, left.path) or is_below(path, left.path.removesuffix(".py")):
            is_file = left.rule == "git" and os.path.exists(path)
            return left._replace(name=path[len(left.path) - len(left.name) :], path=path) if is_file else left
    return None


def _left_of_packages(top: str, path: str) -> Exclusion | None:
    # The error that is explained counts, and not that git or the file system says nothing now.
    with contextlib.suppress(ClusterfnError, OSError):
        listings = (Listing(place, package=True) for place in places(top) if os.path.isdir(place))
        return next(filter(None, (_first(listing.left_out, path) for listing in listings)), None)
    return None


def _near(top: str, folders: Sequence[Path]) -> str | None:
    """Return where a module of this name is, in these folders, beside them, or one below."""
    # The working directory may have been removed.
    with contextlib.suppress(OSError):
        for place in dict.fromkeys(path for folder in folders for path in (folder.resolve(), folder.resolve().parent)):
            for pattern in (f"{top}.py", f"{top}/__init__.py", f"*/{top}.py", f"*/{top}/__init__.py"):
                for path in sorted(place.glob(pattern)):
                    near = str(path.parent if path.name == "__init__.py" else path)
                    if not is_foreign(near):
                        return near
    return None
