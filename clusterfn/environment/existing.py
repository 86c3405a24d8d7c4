"""Use an environment that is on the host already: an interpreter, a venv, a conda environment, a container's image.

Nothing is built. Where one that is named is not there, the error says why, and lists those that are.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clusterfn.bridge import layout
from clusterfn.config import environment_kinds, option_checks
from clusterfn.config.environment_kinds import CHOOSE_ENVIRONMENT, ENVIRONMENT_KINDS, NAME_ENVIRONMENT
from clusterfn.config.host_text import reading, shaped
from clusterfn.config.spec import Host, Interpreter
from clusterfn.environment import containers
from clusterfn.errors import ConfigError, EnvironmentBuildError

CALLER = (sys.version_info[0], sys.version_info[1])
# The worker runs on no older Python.
OLDEST = (3, 9)
_CALLERS_PYTHON = f"python{CALLER[0]}.{CALLER[1]}"
NO_PYTHON = f"no environment was named, and the host has no {_CALLERS_PYTHON} in its PATH"
_WHY, _THERE = "clusterfn why ", "clusterfn there "
MOST_LISTED = 8
# Says what is at the places that were named, if they are few, and which interpreters are near them.
# Begins with the candidates in "$@", and in $beside the folders that may have others, one in a line.
_REPORT = rf"""
PATH=$PATH:/usr/bin:/bin
[ $# -gt 1 ] || for p in "$@"; do
  case $p in "~/"*) p=$HOME/${{p#??}} ;; esac
  ls -ld "$p" 2>&1 | sed 's/^/{_WHY}/'
done
{{ printf '%s\n' "$beside"; cat "$HOME/.conda/environments.txt" 2>/dev/null; }} | while IFS= read -r d; do
  case $d in "") continue ;; "~/"*) d=$HOME/${{d#??}} ;; "~") d=$HOME ;; esac
  for e in "$d/bin/python" "$d/.venv/bin/python" "$d"/*/bin/python "$d"/python3 "$d"/python3.*[0-9]; do
    [ -x "$e" ] && [ ! -d "$e" ] && printf '{_THERE}%s\n' "$e"
  done
done | head -n 500
"""
# By these words the complaint of the program below differs from other failures.
_NONE = "none of these can be executed"
# Tries each candidate; the first that can be executed describes itself. POSIX sh, as every login node has it.
# A script that was named is what jobs run: it may enter a container, where its interpreter has a path that is another
# file outside. The shims of pyenv and its like are no such scripts: what they choose depends on the folder.
# `~/.conda/environments.txt:NAME` is what has that name in the list that conda keeps of all environments.
_FIND = (
    r"""
code=$1 beside=$2; shift 2
listed() {
  [ -r "$HOME/.conda/environments.txt" ] || return 1
  while IFS= read -r prefix; do
    if [ "$1" = base ]; then [ -d "$prefix/condabin" ]; else [ "${prefix##*/}" = "$1" ]; fi || continue
    [ -x "$prefix/bin/python" ] && printf '%s\n' "$prefix/bin/python" && return
  done <"$HOME/.conda/environments.txt"
  return 1
}
script() {
  case $1 in */shims/*) return ;; esac
  IFS= read -r line <"$1"
  case $line in "#!"*) printf %s "$1" ;; esac
}
for p in "$@"; do
  case $p in
    "~/.conda/environments.txt:"*) p=$(listed "${p#*:}") || continue ;;
    "~/"*) p=$HOME/${p#??} ;;
    /*) ;;
    *) p=$(command -v "$p" 2>/dev/null) || continue ;;
  esac
  [ -x "$p" ] && [ ! -d "$p" ] && exec "$p" -I -c "$code" "$(script "$p")"
done
echo "none of these can be executed: $*" >&2
"""
    + _REPORT
    + "\nexit 127"
)
# Run by the environment's own Python (3.6 and up): prints its path, version, prefix and variables as JSON. Calls wait
# for it, so it imports subprocess only where it is needed.
# The scripts of activate.d are sourced in an empty environment: what is there afterwards is what they set. A conda that
# is installed on the machine has no part in it.
_DESCRIBE = r"""
import json, os, sys
script = sys.argv[1]
folder, real = os.path.dirname(sys.executable), os.path.realpath
named = bool(script) or all(real(os.path.join(folder, name)) == real(sys.executable) for name in ("python", "python3"))
conda = os.path.isdir(os.path.join(sys.prefix, "conda-meta"))
source = 'for f in "$1"/etc/conda/activate.d/*.sh; do [ -r "$f" ] && . "$f"; done >/dev/null 2>&1; exec env -0'
shell = next((each for each in ("/bin/bash", "/bin/sh") if os.path.exists(each)), "/bin/sh")
def activated(prefix):
    import subprocess
    start = {"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": os.path.basename(prefix), "CONDA_SHLVL": "1",
             "HOME": os.path.expanduser("~"), "PATH": os.path.join(prefix, "bin") + ":/usr/bin:/bin"}
    try:
        ran = subprocess.run([shell, "-c", source, "sh", prefix], env=start, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return {}
    pairs = [line.partition("=") for line in os.fsdecode(ran.stdout).split("\0")]
    ours = {*start, *shells_own}
    return {name: value for name, separator, value in pairs if separator and name not in ours}
has_scripts = conda and os.path.isdir(os.path.join(sys.prefix, "etc", "conda", "activate.d"))
def torch():
    import re
    files = [os.path.join(folder, "torch", "version.py") for folder in sys.path]
    text = next((open(file, errors="replace").read() for file in files if os.access(file, os.R_OK)), "")
    found = dict(re.findall(r"^(__version__|cuda)\b[^=\n]*= *'([^'\n]*)'", text, re.M))
    return [found.get("__version__", ""), found.get("cuda", "")]
def lacks(name):
    import importlib.util
    return importlib.util.find_spec(name) is None
print(json.dumps({"path": script or sys.executable, "script": bool(script), "named": named,
               "version": list(sys.version_info[:2]), "prefix": sys.prefix, "torch": torch(),
               "missing": [name for name in needed if lacks(name)],
               "conda": conda, "venv": sys.prefix != sys.base_prefix,
               "set": activated(sys.prefix) if has_scripts else {}}))
"""


def is_existing(text: str | None) -> bool:
    """Return whether `environment=` names an existing environment, "conda:x", or none; else it is a specification."""
    return text is None or text == "current" or text.partition(":")[0] in ENVIRONMENT_KINDS


def parse_existing(text: str | None, host: Host, binds: Sequence[str] = ()) -> ExistingEnvironment:
    """Parse `environment=`; None is this interpreter on `local`, else the host's own of the caller's version.

    Raise ConfigError for an unknown kind, one that this version cannot make, or `binds=` that it cannot show.
    """
    if text in (None, "current") and host.scheduler == "local":
        return ExistingEnvironment("current")
    if text is None:
        return ExistingEnvironment("found")
    kind, _, value = text.partition(":")
    if kind == containers.CUSTOM and not host.container:
        raise ConfigError(
            f"environment={text!r} is an image of a runtime that the host {host.name} does not name",
            hint=f'write `container: [shifter, "--image={containers.IMAGE}"]` below the host, with the words of yours',
        )
    if kind in ENVIRONMENT_KINDS and value:
        if ENVIRONMENT_KINDS[kind].images:
            option_checks.environment(text, "environment")
            shown = containers.merge_binds([*host.binds, *binds])
            if shown and kind == containers.CUSTOM:
                what = f"the words of `container:` of {host.name} say themselves which folders the image shows"
                hint = f"add the runtime's own option for {shown[0]} to these words, and remove binds"
                raise ConfigError(what, host=host.name, hint=hint)
            return ExistingEnvironment(kind, value, command=host.container, binds=shown)
        return ExistingEnvironment(kind, value)
    what = f"environment={text!r} does not name an environment that this version can use"
    if text == "current":
        what = 'environment="current" is the interpreter of this program, which only a local host has'
    raise ConfigError(what, hint=CHOOSE_ENVIRONMENT)


class ExistingEnvironment(NamedTuple):
    """An environment that is on the host already.

    Attributes:
        kind: One of `ENVIRONMENT_KINDS`, "current", or "found" (the host's own pythonX.Y).
        value: The path or name; "" for "current" and "found".
        needed: Modules that it must have.
        command: `container:` of its host, for an image.
        binds: `binds:` of its host and `binds=` of the call, for an image.
    """

    kind: str
    value: str = ""
    needed: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()

    @property
    def is_image(self) -> bool:
        """Whether a script enters an image for it."""
        return self.kind in containers.KINDS

    def _script(self, root: str) -> str:
        return containers.make_script(self.kind, self.value, self.command, self.binds, root)

    def probe(self, loading: str = "") -> Sequence[str]:
        """Return the command that finds its interpreter on the host and lets it describe itself.

        Args:
            loading: Lines of shell that load the host's modules, for the runtime of a container.
        """
        program = f"needed, shells_own = {list(self.needed)!r}, {layout.SHELLS_OWN!r}\n{_DESCRIBE}"
        if self.is_image:
            return ["/bin/sh", "-c", f"{loading}\n{self._script('')}", "sh", "-I", "-c", program, self.kind]
        # Each is absolute, below `~/`, or a name in PATH.
        candidates = [sys.executable if self.kind == "current" else _CALLERS_PYTHON]
        if self.kind in ENVIRONMENT_KINDS:
            candidates = list(ENVIRONMENT_KINDS[self.kind].interpreters(self.value))
        return ["/bin/sh", "-c", _FIND, "sh", program, _folders_beside(self.kind, self.value), *candidates]

    def read(
        self, rc: int | None, out: bytes, err: bytes, root: str
    ) -> tuple[Interpreter, Mapping[str, Mapping[str, bytes]]]:
        """Read what the command of `probe` printed: the interpreter, and folders of executables to be made first.

        Raises:
            EnvironmentBuildError: There is no such interpreter, it is too old, or modules are missing.
        """
        try:
            said = json.loads(out.splitlines()[-1]) if rc == 0 else {}
        except (ValueError, IndexError, RecursionError):
            said = {}
        if not said or not isinstance(said, dict):
            if self.is_image:
                raise self._explain_image(rc, out + err)
            if _NONE.encode() in err:
                raise _explain_absence(self.kind, self.value, out.decode("utf-8", "replace"))
            lines = [line.decode("utf-8", "replace") for line in (out + err).splitlines()[-5:]]
            what = f"environment '{self.kind}:{self.value}' has no interpreter"
            if self.kind == "found":
                what = f"no environment was named, and the host has no {_CALLERS_PYTHON}"
            hint = "find it on the host, and set the path of its python"
            message = f"{what} that runs (exit {rc})"
            raise EnvironmentBuildError(message, evidence=lines, stage="environment", hint=hint)
        with reading("the host", "what its interpreter says of itself"):
            path = str(said["path"])
            prefix = str(said["prefix"])
            missing = list(map(str, said["missing"]))
            major, minor = map(int, said["version"])
            torch, cuda = map(str, said["torch"])
            shaped(said, {"named": bool, "script": bool, "prefix": str, "set": {...: str}, "conda": bool, "venv": bool})
        if missing:
            what = f"no environment was named, and {path} has no {', '.join(missing)}"
            raise EnvironmentBuildError(what, stage="environment", hint=CHOOSE_ENVIRONMENT)
        if (major, minor) < OLDEST:
            message = f"the environment '{self.kind}:{self.value}' has Python {major}.{minor}, "
            message += f"and a function needs Python {OLDEST[0]}.{OLDEST[1]} or newer"
            hint = f"name an environment with a newer Python, ideally {CALLER[0]}.{CALLER[1]} as on this machine"
            raise EnvironmentBuildError(message, evidence=[path], stage="environment", hint=hint)
        # A script that calls a bare `python3` would find itself, were its folder the first.
        folders = dict[str, Mapping[str, bytes]]()
        in_path = [] if said["script"] else [posixpath.dirname(path)]
        if self.is_image:
            script = self._script(root).encode("utf-8", "surrogateescape")
            folder = posixpath.join(root, layout.SHIMS, hashlib.sha256(script).hexdigest()[:16])
            folders, path = {folder: {"python": script}}, posixpath.join(folder, "python")
        # Programs of the job look for `python`, and nothing beside this interpreter has that name.
        if not said["named"]:
            encoded = path.encode("utf-8", "surrogateescape")
            script = b'#!/bin/sh\nexec "%s" "$@"\n' % encoded
            shims = posixpath.join(root, layout.SHIMS, hashlib.sha256(encoded).hexdigest()[:16])
            folders, in_path = {shims: {"python": script, "python3": script}}, [shims, *in_path]
        of_kind = {"VIRTUAL_ENV": prefix} if said["venv"] else {}
        if said["conda"]:
            of_kind = {"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": posixpath.basename(prefix)}
        activation = {"prepend": {"PATH": in_path}, "set": {**said["set"], **of_kind}, "unset": []}
        image = f"{self.kind}:{self.value}" if self.is_image else ""
        return Interpreter(path, (major, minor), activation, image, (torch, cuda)), folders

    def _explain_image(self, rc: int | None, printed: bytes) -> EnvironmentBuildError:
        """Return the error for an image whose Python did not describe itself, from what was printed instead."""
        lines = [line.strip() for line in printed.decode("utf-8", "replace").splitlines() if line.strip()]
        refused = next((line for line in lines if line.startswith(containers.REFUSED)), "")
        if containers.NOT_IN_PATH in refused:
            program = refused[len(containers.REFUSED) :].partition(" ")[0]
            hint = f"name the module that has it, as `modules: [{program}]`, or add its folder to PATH in `setup:`"
        elif refused:
            hint = "correct the path, in the words of the host"
        else:
            usual = "on the host, run `python3 --version` in this image: it needs a python3 in its PATH"
            hint = next((hint for words, hint in containers.HINTS if re.search(words, "\n".join(lines))), usual)
        reason = refused[len(containers.REFUSED) :] or f"its python3 did not run (exit {rc})"
        message = f"environment '{self.kind}:{self.value}': {reason}"
        return EnvironmentBuildError(
            message, evidence=lines[-5:] if not refused else (), stage="environment", hint=hint
        )


def _folders_beside(kind: str, value: str) -> str:
    """Return the folders on a host that may have what was meant, one in a line."""
    if kind in ("conda", "found"):
        places = environment_kinds.CONDA_PLACES
        of_conda = [folder for place in places for folder in (place, posixpath.join(place, "envs"))]
        return "\n".join([*([] if kind == "conda" else ["/usr/bin", "/usr/local/bin", "~", "/opt"]), *of_conda])
    # An interpreter may be that of an environment, whose neighbours are two folders up.
    above = posixpath.dirname(value.rstrip("/").partition("/bin/python")[0]) or "/"
    return "\n".join([above, value, posixpath.join(value, "envs")])


def _explain_absence(kind: str, value: str, printed: str) -> EnvironmentBuildError:
    """Return the error for an environment that is not there, from what `_REPORT` has printed; it lists what is."""
    said, there = (
        list(dict.fromkeys(line[len(sign) :] for line in printed.splitlines() if line.startswith(sign)))
        for sign in (_WHY, _THERE)
    )
    more = f" and {len(there) - MOST_LISTED} more" if len(there) > MOST_LISTED else ""
    listed = [f"there are {', '.join(f'python:{path}' for path in there[:MOST_LISTED])}{more}"] if there else []
    if kind == "found":
        # Without the caller's version of Python, others may do.
        same = next((path for path in there if posixpath.basename(path) == _CALLERS_PYTHON), "")
        hint = f'set environment="python:{same}"' if same else NAME_ENVIRONMENT
        return EnvironmentBuildError(NO_PYTHON, evidence=listed, stage="environment", hint=hint)
    places = (
        [f"searched {', '.join((*environment_kinds.CONDA_PLACES, environment_kinds.CONDA_LIST))}"]
        if kind == "conda"
        else said
    )
    # The interpreter of this program may be gone too, which is no kind of its own.
    hint = ENVIRONMENT_KINDS.get(kind, ENVIRONMENT_KINDS["python"]).if_missing.format(value=value)
    message = f"the host has no environment '{kind}:{value}'"
    return EnvironmentBuildError(message, evidence=[*places, *listed], stage="environment", hint=hint)
