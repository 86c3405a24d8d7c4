"""job.sh, and every quoting of a value for a shell.

Pure: templates are read from the package, values are put in, nothing is written or run.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING

from clusterfn.bridge import layout
from clusterfn.bridge.schedulers.registry import SCHEDULERS
from clusterfn.config.spec import Host

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec

_HOLE = re.compile(r"@@([a-z]+)")
# What a path of a host may begin with, for the host to fill in.
LEADING_VARIABLE = re.compile(r"\$(\{)?([A-Za-z_]\w*)(?(1)\})(?=/|$)", re.ASCII)


def quote(value: str) -> str:
    """Return `value` as one word of a POSIX shell.

    Raises:
        ValueError: It has a NUL, which no shell can pass on.

    Example:
        >>> quote("it's")
        '\\'it\\'"\\'"\\'s\\''
    """
    if "\0" in value:
        raise ValueError(f"a NUL in {value!r}")
    return shlex.quote(value)


def quote_path(path: str) -> str:
    """Return `path` as one word, in which `~/` and a variable at its beginning are those of the host."""
    if variable := LEADING_VARIABLE.match(path):
        begin, rest = f"${{{variable[2]}}}", path[variable.end() :]
    elif path == "~" or path.startswith("~/"):
        begin, rest = "$HOME", path[1:]
    else:
        return quote(path)
    return f'"{begin}"/{quote(rest[1:])}' if rest[1:] else f'"{begin}"{rest}'


def command_line(argv: Iterable[str]) -> str:
    """Return these words as one line for a POSIX shell."""
    return " ".join(quote(word) for word in argv)


def job_script(job: JobSpec) -> str:
    """Return the script that runs this job, the same for every scheduler."""
    folder, errors = layout.job_dir(job.root, job.id), layout.MODULE_ERRORS
    # The number of an element is the sum of the one given and that of the task in an array of any scheduler, or 0.
    variables = [scheduler.task_variable for scheduler in SCHEDULERS.values()]
    task = reduce(lambda others, name: f"${{{name}:-{others}}}", reversed(variables), "0")
    element = fill("element.sh", {"job": _folder(job), "number": f"$(($1 + {task}))"}).rstrip("\n")
    module_errors = f"{_folder(job)}/{errors}" if job.group else quote(posixpath.join(folder, errors))
    loading = _loading([*job.host.modules, *job.modules], module_errors)
    return fill(
        "job.sh",
        {
            "id": job.id,
            "python": quote(job.host_python),
            "supervise": quote(posixpath.join(job.bridge, layout.SUPERVISE)),
            "job": _folder(job),
            "started": layout.STARTED,
            "element": element if job.group else "",
            "returned": str(layout.EXIT_RETURNED),
            "published": str(layout.EXIT_PUBLISHED),
            "queued": str(layout.EXIT_QUEUED),
            "again": str(layout.EXIT_AGAIN),
            # These folders come last: the node's own login environment mostly has the commands, and they must not hide
            # the function's own.
            "path": f"\nPATH=$PATH:{_folders(job.host.scheduler_path)}" if job.host.scheduler_path else "",
            "lines": _before_python(job.host, loading, job.host.prolog),
        },
    )


def _before_python(host: Host, loading: Iterable[str], prolog: Sequence[str]) -> str:
    """Put the host's own lines, each checked, around the loading of its modules."""
    helpers = [fill("lines.sh", {}).rstrip("\n")] if host.setup or prolog else []
    begun = ["clusterfn_stage=prolog"] if prolog else []
    return "\n".join([*helpers, *_checked(host.setup), *loading, *begun, *_checked(prolog)])


def _checked(lines: Sequence[str]) -> list[str]:
    """Return lines that end the script when one of these fails. Those of one block may share a command."""
    run = '{ eval "$clusterfn_line"; clusterfn_ran "$?"; }'
    text = [f"! clusterfn_whole {quote(line)} || {run}" for line in lines]
    return [*text, f'[ -z "$clusterfn_line" ] || {run}'] if lines else []


def _folders(folders: Iterable[str]) -> str:
    """Return the word for folders in PATH, in which `~/` is the home of the node."""
    return ":".join(map(quote_path, folders))


def _folder(job: JobSpec) -> str:
    """Return the word for the job's folder; for an element of a group, its own in it."""
    folder = layout.job_dir(job.root, job.id)
    return f'{quote(posixpath.join(folder, layout.ELEMENTS, ""))}"$clusterfn_element"' if job.group else quote(folder)


def _loading(modules: Iterable[str], errors_file: str) -> list[str]:
    """Return lines that load these modules once; `errors_file` is the word for the file with what `module` says."""
    names = list(dict.fromkeys(modules))
    if not names:
        return []
    return [fill("modules.sh", {"said": errors_file}).rstrip("\n"), *(f"load_module {quote(name)}" for name in names)]


def modules_check(host: Host, marker: str, has_nodes: bool) -> str:
    """Return a script that does what a host's jobs do before Python, and prints a line `MARK STATUS STAGE`.

    The stage is "loaded", "setup", "prolog" or "module:NAME". After "setup" and "prolog" follows the line that failed,
    after a module those with a similar name. Where there are compute nodes `prolog:` is left out: it is
    meant for them.
    """
    prolog = () if has_nodes else host.prolog
    lines = _before_python(host, _loading(host.modules, '"$clusterfn_said"'), prolog)
    return fill("modules_check.sh", {"mark": marker, "lines": lines})


def modules_setup(host: Host) -> str:
    """Return the lines that load a host's modules as its jobs do; "" if it has none, and no lines of its own."""
    lines = _before_python(host, _loading(host.modules, '"$clusterfn_said"'), ())
    begin = "clusterfn_stage=setup\nclusterfn_said=$(mktemp) || exit 1"
    end = 'rm -f -- "$clusterfn_said"'
    return f"{begin}\n{lines}\n{end}" if lines else ""


def fill(template: str, values: Mapping[str, str]) -> str:
    """Fill the @@holes of a template; what is put in is not searched for holes again."""
    return _HOLE.sub(lambda hole: values[hole[1]], read_template(template))


@cache
def read_template(name: str) -> str:
    """Read a file of templates/: in the package once installed, next to it in a checkout."""
    package = Path(__file__).parents[1]
    folder = package / "templates"
    return ((folder if folder.is_dir() else package.parent / "templates") / name).read_text(encoding="utf-8")
