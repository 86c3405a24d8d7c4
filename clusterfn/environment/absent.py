"""Explain why an environment that is named is not on the host, and list those that are, the nearest first.

`REPORT` is the part of a POSIX script that looks; `explain` turns what it printed into an error.
"""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Sequence

from clusterfn.errors import EnvironmentBuildError

_WHY, _HOME, _THERE = "clusterfn why ", "clusterfn home ", "clusterfn there "
_MOST, _ALIKE = 8, 0.6
_LOCKED = "your account may not enter "
# Begins with the candidates in "$@", and in $beside the folders that may have others, one in a line.
REPORT = rf"""
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


def folders_beside(kind: str, value: str, places: Sequence[str]) -> str:
    """Return the folders on a host that may have what was meant, one in a line."""
    if kind == "conda":
        return "\n".join(each for place in places for each in (place, posixpath.join(place, "envs")))
    above = posixpath.dirname(value.rstrip("/")) or "/"
    if kind == "python":
        beside = posixpath.dirname(above.removesuffix("/bin"))  # of an environment: its neighbours
        return "\n".join([above, beside or "/", "/usr/bin", "/usr/local/bin"])
    return "\n".join([above, value, posixpath.join(value, "envs")])


def explain(kind: str, value: str, places: Sequence[str], printed: str) -> EnvironmentBuildError:
    """Return the error for an environment that is not there, from what `REPORT` has printed."""
    lines = printed.splitlines()
    home = next((line[len(_HOME) :] for line in lines if line.startswith(_HOME)), "")
    reasons = [line[len(_WHY) :] for line in lines if line.startswith(_WHY)]
    programs = dict.fromkeys(line[len(_THERE) :] for line in lines if line.startswith(_THERE))
    words = dict.fromkeys(_as_written(kind, program, home, places) for program in programs)
    names = sorted(filter(None, words), key=lambda each: -_likeness(each, value))
    what = f"environment '{kind}:{value}'"
    if kind == "conda":
        reasons = [f"no conda on the host has an environment {value}"]
    evidence = [f"there {'are' if len(names) > 1 else 'is'} {_joined([f'{kind}:{each}' for each in names])}"]
    if not names:
        evidence = [f"searched {', '.join(places)}"] if kind == "conda" else []
    near = names[0] if names and _likeness(names[0], value) >= _ALIKE else ""
    if reasons and reasons[0].startswith(_LOCKED):
        hint = "ask the owner of that folder to let you in, or use an environment of your own"
    elif len([each for each in names if each.startswith(f"{value.rstrip('/')}/")]) > 1:
        hint = f'choose one of them, for example environment="{kind}:{near}"'
    elif near:
        hint = f'did you mean environment="{kind}:{near}"?'
    elif kind == "conda":
        hint = 'run `conda env list` on the host, and name the folder of the environment: "prefix:/path"'
    elif kind == "venv":
        hint = f"create it on the host, `python3 -m venv {value}`, or correct the path"
    else:
        hint = "find it on the host, and correct the path"
    message = f"{what}: {reasons[0] if reasons else 'it does not exist'}"
    return EnvironmentBuildError(message, evidence=evidence, stage="environment", hint=hint)


def _as_written(kind: str, program: str, home: str, places: Sequence[str]) -> str:
    """Return how a user names an interpreter that exists, behind the colon; "" if it is of another kind."""
    is_environment = program.endswith("/bin/python")
    path = program if kind == "python" else program[: -len("/bin/python")]
    short = f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path
    if kind == "python":
        return "" if program.endswith("-config") else short
    if not is_environment:
        return ""
    if kind == "conda":
        return "base" if short in places else posixpath.basename(path)
    return short


def _likeness(name: str, value: str) -> float:
    if name.startswith(f"{value.rstrip('/')}/"):  # the folder of several was named, or that of its project
        return 1.0
    (folder, end), (above, wanted) = (posixpath.split(each.rstrip("/").lower()) for each in (name, value))
    pairs = [(end, wanted)]
    if above.endswith("/bin"):  # an interpreter: every environment calls it python, so its environment counts too
        pairs.append((posixpath.basename(folder.removesuffix("/bin")), posixpath.basename(above[: -len("/bin")])))
    return min(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)


def _joined(names: Sequence[str]) -> str:
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more} more" if more > 0 else "")
