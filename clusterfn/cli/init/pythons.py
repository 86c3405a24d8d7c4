"""Look for the Python that runs functions: the host's own of the caller's minor version, or one in a usual place.

A POSIX sh program finds these, and tries each. Without one, a call builds an environment for what its function imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterfn.cli.init.choices import Answers, say
from clusterfn.config.environment_kinds import CONDA_PLACES, names_a_file, split_file
from clusterfn.environment import existing
from clusterfn.environment.existing import CALLER
from clusterfn.errors import ConfigError, EnvironmentBuildError
from clusterfn.hosts.connection import HostConnection
from clusterfn.hosts.environment_choice import EnvironmentRequest
from clusterfn.hosts.host_state import HostState

NONE = "none"
PYTHON = f"python{CALLER[0]}.{CALLER[1]}"
_TIMEOUT_S = 60.0
_MOST = 6
_NEEDS = "from packages of a channel that your machine can reach"

# $1 is pythonX.Y, $2 is X.Y, and the rest are the places of conda. A
# folder that does not exist stays a pattern, which -x then rejects.
_LOOK = r"""
name=$1 minor=$2; shift 2
try() { for p in "$@"; do [ -x "$p" ] && [ ! -d "$p" ] && "$p" -I -c "
import importlib.util, os, sys
if sys.version_info[:2] == tuple(map(int, '$minor'.split('.'))):
    print(os.path.abspath(sys.executable), *['torch'] * bool(importlib.util.find_spec('torch')), sep='\t')
" 2>/dev/null </dev/null; done; }
[ -r "$HOME/.conda/environments.txt" ] && while IFS= read -r prefix; do try "$prefix/bin/python"; done \
  <"$HOME/.conda/environments.txt"
for conda in "$@"; do
  case $conda in "~/"*) conda=$HOME/${conda#??} ;; esac
  try "$conda/bin/$name" "$conda"/envs/*/bin/"$name"
done
try "$HOME/.pyenv/versions/$minor".*/bin/"$name" "$HOME/.local/share/uv/python/cpython-$minor".*/bin/"$name" \
  "$HOME/.local/bin/$name" "$HOME/.venv/bin/$name" "$HOME"/venv*/bin/"$name" /usr/bin/"$name" /usr/local/bin/"$name" \
  /opt/*/bin/"$name" /opt/*/*/bin/"$name" /opt/*/*/*/bin/"$name" /usr/local/*/bin/"$name"
exit 0
"""


def environment(host: HostState, choice: str | None, answers: Answers) -> str | None:
    """Return what to write as `environment:`; None where the host's own will do, or one is to be made.

    Raises:
        EnvironmentBuildError: The given one does not exist, or cannot be made.
        ConfigError: It is no environment that can be named.
    """
    if choice == NONE:
        return None
    if choice:
        say(f"Functions run with {host.environments.find(EnvironmentRequest(choice)).interpreter.title}.")
        return choice
    own = _own(host.connection)
    if own is None:
        return _elsewhere(host, answers)
    say(f"Functions run with {own}, the same version as yours.")
    return None


def _own(connection: HostConnection) -> str | None:
    """Return the interpreter that is used where none is named; None if there is none."""
    environment = existing.ExistingEnvironment("found")
    answer = connection.run(environment.probe(), timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
    try:
        return environment.read(answer.rc, answer.out, answer.err, "")[0].path
    except EnvironmentBuildError:
        return None


def _elsewhere(host: HostState, answers: Answers) -> str | None:
    found = find_pythons(host.connection)
    paths = list(found)
    if not paths:
        say(f"The host has no {PYTHON}: your first call builds an environment for what its function imports.")
        return None
    say(f"{PYTHON} is not in the PATH of the host; clusterfn found it as")
    for number, path in enumerate(paths, 1):
        say(f"  {number}  python:{path}{'  (has PyTorch)' if found[path] else ''}")
    question = f"Environment that runs your functions (a number; {NONE}: one is built for what they import, {_NEEDS})"
    default = f"python:{paths[0]}"
    typed = answers.text(question, "--environment", default, lambda it: _try(host, parse_answer(it, paths)))
    chosen = parse_answer(typed, paths)
    return None if chosen == NONE else chosen


def parse_answer(typed: str, paths: Sequence[str]) -> str:
    """Return an environment as clusterfn.yml writes it: a number is one of the list, a path is that of a Python."""
    if typed.isdecimal() and 0 < int(typed) <= len(paths):
        return f"python:{paths[int(typed) - 1]}"
    return f"python:{typed}" if typed.startswith(("/", "~/")) and not names_a_file(typed) else typed


def _try(host: HostState, text: str) -> None:
    """Raise ConfigError if that is no environment, or does not exist."""
    if text == NONE or (names_a_file(text) and Path(split_file(text)[0]).expanduser().is_file()):
        return
    existing.parse_existing(text, host.settings)
    try:
        host.environments.find(EnvironmentRequest(text))
    except EnvironmentBuildError as error:
        raise ConfigError(error.message, hint=error.hint) from error


def find_pythons(connection: HostConnection) -> dict[str, bool]:
    """Return whether each of these Pythons has PyTorch, by its path.

    The first is proposed, so those with PyTorch come first, and the system's own last: users cannot install into it.
    """
    argv = ["/bin/sh", "-c", _LOOK, "sh", PYTHON, PYTHON.removeprefix("python"), *CONDA_PLACES]
    answer = connection.run(argv, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
    lines = answer.out.decode("utf-8", "replace").splitlines()
    found = {path: what == "torch" for path, _, what in (line.partition("\t") for line in lines) if path[:1] == "/"}
    return dict(sorted(found.items(), key=lambda it: (not it[1], it[0].startswith("/usr/bin/")))[:_MOST])
