"""Use an environment that is on the host already: an interpreter, a venv, a conda environment, a container's image.

Nothing is built. Where one that is named is not there, the error says why, and lists those that are.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import posixpath
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clusterfn.bridge import layout
from clusterfn.config import forms
from clusterfn.config.forms import CHOOSE_ENVIRONMENT, ENVIRONMENT_KINDS, NAME_ENVIRONMENT
from clusterfn.config.host_text import reading, shaped
from clusterfn.config.spec import Host, Interpreter
from clusterfn.environment import containers
from clusterfn.errors import ConfigError, EnvironmentBuildError

CALLER = (sys.version_info[0], sys.version_info[1])
# The worker runs on no older Python.
OLDEST = (3, 9)
_CALLERS_PYTHON = f"python{CALLER[0]}.{CALLER[1]}"
NO_PYTHON = f"no environment was named, and the host has no {_CALLERS_PYTHON} in its PATH"
_WHY, _HOME, _THERE = "clusterfn why ", "clusterfn home ", "clusterfn there "
MOST_LISTED, _ALIKE = 8, 0.6
_LOCKED = "your account may not enter "
# Says why they are not there, and which environments are.
# Begins with the candidates in "$@", and in $beside the folders that may have others, one in a line.
_REPORT = rf"""
PATH=$PATH:/usr/bin:/bin
locked() {{
  case $1 in /*) ;; *) return 1 ;; esac
  lock=${{1%/*}}
  while [ -n "$lock" ] && [ ! -e "$lock" ]; do lock=${{lock%/*}}; done
  [ -d "$lock" ] && [ ! -x "$lock" ]
}}
why() {{
  folder=${{2%/bin/python}}
  to=$(readlink -m "$2" 2>/dev/null || echo "$2")
  if [ ! -e "$2" ] && locked "$to"; then echo "{_LOCKED}$lock, where $to is"
  elif [ -L "$2" ] && [ ! -e "$2" ]; then echo "$1 is a link to $to, which does not exist"
  elif [ -d "$2" ]; then echo "$1 is a folder"
  elif [ -e "$2" ]; then echo "$1 cannot be executed"
  elif [ "$folder" != "$2" ] && [ -d "$folder" ]; then echo "${{1%/bin/python}} has no bin/python"
  else echo "${{1%/bin/python}} does not exist"; fi
}}
echo "{_HOME}$HOME"
for p in "$@"; do
  case $p in "~/"*) q=$HOME/${{p#??}} ;; *) q=$p ;; esac
  printf '{_WHY}%s\n' "$(why "$p" "$q")"
done
{{ printf '%s\n' "$beside"; cat "$HOME/.conda/environments.txt" 2>/dev/null; }} | while IFS= read -r d; do
  case $d in "") continue ;; "~/"*) d=$HOME/${{d#??}} ;; "~") d=$HOME ;; esac
  for e in "$d/bin/python" "$d/.venv/bin/python" "$d"/*/bin/python "$d"/python3*; do
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
def lacks(name):
    import importlib.util
    return importlib.util.find_spec(name) is None
print(json.dumps({"path": script or sys.executable, "script": bool(script), "named": named,
               "version": list(sys.version_info[:2]), "prefix": sys.prefix,
               "missing": [name for name in needed if lacks(name)],
               "conda": conda, "venv": sys.prefix != sys.base_prefix,
               "set": activated(sys.prefix) if has_scripts else {}}))
"""


def is_existing(text: str | None) -> bool:
    """Return whether `environment=` names an existing environment, "conda:x", or none; else it is a specification."""
    return text is None or text == "current" or text.partition(":")[0] in ENVIRONMENT_KINDS


def parse_existing(text: str | None, host: Host) -> ExistingEnvironment:
    """Parse `environment=`; None is this interpreter on `local`, else the host's own of the caller's version.

    Raise ConfigError for an unknown kind, or one that this version cannot make.
    """
    if text in (None, "current") and host.scheduler == "local":
        return ExistingEnvironment("current")
    if text is None:
        return ExistingEnvironment("found")
    kind, _, value = text.partition(":")
    if kind == containers.CUSTOM and not host.container:
        raise ConfigError(
            f"environment={text!r} is an image of a runtime that the host {host.name} does not name",
            hint=f'write `container: [podman, run, "{containers.IMAGE}"]` below the host, with the words of yours',
        )
    if kind in ENVIRONMENT_KINDS and value:
        if ENVIRONMENT_KINDS[kind].is_image:
            return ExistingEnvironment(kind, value, command=host.container, binds=host.binds)
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
        binds: `binds:` of its host, for an image.
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
            raise EnvironmentBuildError(f"{what} that runs (exit {rc})", evidence=lines, stage="environment",
                                        hint="find it on the host, and set the path of its python")  # fmt: skip
        with reading("the host", "what its interpreter says of itself"):
            path, prefix, missing = str(said["path"]), str(said["prefix"]), list(map(str, said["missing"]))
            major, minor = map(int, said["version"])
            shaped(said, {"named": bool, "script": bool, "prefix": str, "set": {...: str}, "conda": bool, "venv": bool})
        if missing:
            what = f"no environment was named, and {path} has no {', '.join(missing)}"
            raise EnvironmentBuildError(what, stage="environment", hint=CHOOSE_ENVIRONMENT)
        if (major, minor) < OLDEST:
            raise EnvironmentBuildError(
                f"the environment '{self.kind}:{self.value}' has Python {major}.{minor}, "
                f"and a function needs Python {OLDEST[0]}.{OLDEST[1]} or newer", evidence=[path], stage="environment",
                hint=f"name an environment with a newer Python, ideally {CALLER[0]}.{CALLER[1]} as on this machine",
            )  # fmt: skip
        # A script that calls a bare `python3` would find itself, were its folder the first.
        folders, in_path = dict[str, Mapping[str, bytes]](), [] if said["script"] else [posixpath.dirname(path)]
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
        of_conda = {"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": posixpath.basename(prefix)}
        of_kind = of_conda if said["conda"] else {"VIRTUAL_ENV": prefix} if said["venv"] else {}
        activation = {"prepend": {"PATH": in_path}, "set": {**said["set"], **of_kind}, "unset": []}
        return Interpreter(path, (major, minor), activation), folders

    def _explain_image(self, rc: int | None, printed: bytes) -> EnvironmentBuildError:
        """Return the error for an image whose Python did not describe itself, from what was printed instead."""
        lines = [line.strip() for line in printed.decode("utf-8", "replace").splitlines() if line.strip()]
        refused = next((line for line in lines if line.startswith(containers.REFUSED)), "")
        if "in PATH" in refused:
            hint = f"name the module that has it, as `modules: [{self.kind}]`, or add its folder to PATH in `setup:`"
        elif refused:
            hint = "correct the path, in the words of the host"
        else:
            hint = "run this image on the host by hand, with `python3 --version`: it needs a python3 in its PATH"
        reason = refused[len(containers.REFUSED) :] or f"its python3 did not run (exit {rc})"
        message = f"environment '{self.kind}:{self.value}': {reason}"
        return EnvironmentBuildError(
            message, evidence=lines[-5:] if not refused else (), stage="environment", hint=hint
        )


def _folders_beside(kind: str, value: str) -> str:
    """Return the folders on a host that may have what was meant, one in a line."""
    of_conda = [each for place in forms.CONDA_PLACES for each in (place, posixpath.join(place, "envs"))]
    if kind in ("conda", "found"):
        return "\n".join(of_conda if kind == "conda" else ["/usr/bin", "/usr/local/bin", "~", "/opt", *of_conda])
    above = posixpath.dirname(value.rstrip("/")) or "/"
    if kind == "python":
        # An interpreter may be that of an environment, whose neighbours are two folders up.
        beside = posixpath.dirname(above.removesuffix("/bin"))
        return "\n".join([above, beside or "/", "/usr/bin", "/usr/local/bin"])
    return "\n".join([above, value, posixpath.join(value, "envs")])


def _explain_absence(kind: str, value: str, printed: str) -> EnvironmentBuildError:
    """Return the error for an environment that is not there, from what `_REPORT` has printed; it lists what is."""
    found = {sign: [line[len(sign) :] for line in printed.splitlines() if line.startswith(sign)]
             for sign in (_WHY, _HOME, _THERE)}  # fmt: skip
    # Without the caller's version of Python, others may do.
    of, like = ("python", f"/usr/bin/{_CALLERS_PYTHON}") if kind == "found" else (kind, value)
    home = next(iter(found[_HOME]), "")
    # As users name them, those like the value first.
    words = dict.fromkeys(_as_written(of, program, home) for program in found[_THERE])
    names = sorted(filter(None, words), key=lambda each: -_likeness(each, like))
    some, more = ", ".join(f"{of}:{each}" for each in names[:MOST_LISTED]), len(names) - MOST_LISTED
    listed = f"there {'are' if len(names) > 1 else 'is'} {some}{f' and {more} more' if more > 0 else ''}"
    evidence = [listed] if names else []
    if kind == "found":
        same = next((each for each in names if posixpath.basename(each) == _CALLERS_PYTHON), "")
        hint = f'set environment="python:{same}"' if same else NAME_ENVIRONMENT
        return EnvironmentBuildError(NO_PYTHON, evidence=evidence, stage="environment", hint=hint)
    reasons = found[_WHY] or ["it does not exist"]
    if kind == "conda":
        reasons = [f"no conda on the host has an environment {value}"]
        places = (*forms.CONDA_PLACES, forms.CONDA_LIST)
        evidence = evidence or [f"searched {', '.join(places)}"]
    near = names[0] if names and _likeness(names[0], value) >= _ALIKE else ""
    if reasons[0].startswith(_LOCKED):
        hint = "ask the owner of that folder to let you in, or use an environment of your own"
    elif len([each for each in names if each.startswith(f"{value.rstrip('/')}/")]) > 1:
        hint = f'choose one of them, for example environment="{kind}:{near}"'
    elif near:
        hint = f'did you mean environment="{kind}:{near}"?'
    else:
        # The interpreter of this program may be gone too, which is no kind of its own.
        hint = ENVIRONMENT_KINDS.get(kind, ENVIRONMENT_KINDS["python"]).if_missing.format(value=value)
    message = f"environment '{kind}:{value}': {reasons[0]}"
    return EnvironmentBuildError(message, evidence=evidence, stage="environment", hint=hint)


def _as_written(kind: str, program: str, home: str) -> str:
    """Return how a user names an interpreter that exists, behind the colon; "" if it is of another kind."""
    path = program if kind == "python" else program.removesuffix("/bin/python")
    short = f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path
    if kind == "python":
        return "" if program.endswith("-config") else short
    if kind == "conda" and path != program:
        return "base" if short in forms.CONDA_PLACES else posixpath.basename(path)
    return short if path != program else ""


def _likeness(name: str, value: str) -> float:
    # The user has named the folder of several environments, or that of a project.
    if name.startswith(f"{value.rstrip('/')}/"):
        return 1.0
    (folder, end), (above, wanted) = (posixpath.split(each.rstrip("/").lower()) for each in (name, value))
    pairs = [(end, wanted)]
    # Every environment calls its interpreter python, so the name of the environment counts too.
    if above.endswith("/bin"):
        pairs.append((posixpath.basename(folder.removesuffix("/bin")), posixpath.basename(above[: -len("/bin")])))
    return min(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
