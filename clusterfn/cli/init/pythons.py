"""Which Python is to run functions on a host: its own of the caller's minor version, or one where people put them.

Builds the question (POSIX sh) and reads the answer; what is found is tried before it is told. Installs nothing: where
there is none, building an environment would be called here. Called by `init`.
"""

from __future__ import annotations

from clusterfn.cli.init.answers import Answers, say
from clusterfn.environment.existing import CALLER
from clusterfn.environments import Wanted
from clusterfn.errors import EnvironmentBuildError
from clusterfn.host import HostConnection
from clusterfn.session import Session

PYTHON = f"python{CALLER[0]}.{CALLER[1]}"
_TIMEOUT_S = 60.0
_MOST = 6

# $1 is pythonX.Y, $2 is X.Y. A folder that is not there stays a pattern, which -x then refuses.
_LOOK = r"""
name=$1 minor=$2
try() { for p in "$@"; do [ -x "$p" ] && [ ! -d "$p" ] && "$p" -I -c "
import os, sys
if sys.version_info[:2] == tuple(map(int, '$minor'.split('.'))): print(os.path.abspath(sys.executable))
" 2>/dev/null </dev/null; done; }
[ -r "$HOME/.conda/environments.txt" ] && while IFS= read -r prefix; do try "$prefix/bin/python"; done \
  <"$HOME/.conda/environments.txt"
for base in "$HOME" /opt; do
  for conda in miniconda3 anaconda3 miniforge3 mambaforge micromamba conda .conda; do
    try "$base/$conda/bin/$name" "$base/$conda"/envs/*/bin/"$name"
  done
done
try "$HOME/.pyenv/versions/$minor".*/bin/"$name" "$HOME/.local/share/uv/python/cpython-$minor".*/bin/"$name" \
  "$HOME/.local/bin/$name" "$HOME/.venv/bin/$name" "$HOME"/venv*/bin/"$name" /usr/bin/"$name" /usr/local/bin/"$name" \
  /opt/*/bin/"$name" /opt/*/*/bin/"$name" /opt/*/*/*/bin/"$name" /usr/local/*/bin/"$name"
exit 0
"""


def environment(session: Session, given: str | None, answers: Answers) -> str | None:
    """What to write as `environment:`; None where nothing need be, or can be.

    Raises:
        EnvironmentBuildError: The given one is not there, or is of another version.
        ConfigError: It is no environment that can be named.
    """
    try:
        found = session.environment(Wanted(given)).interpreter.path
    except EnvironmentBuildError:
        if given:
            raise
        return _elsewhere(session.connection, answers)
    say(f"Functions run under {found}, of the same version as here.")
    return given


def _elsewhere(connection: HostConnection, answers: Answers) -> str | None:
    found = find(connection)
    if not found:
        say(f"There is no {PYTHON} that runs your functions (it must be of the version that you have here). Make one "
            "there, say by conda or uv (or see `module avail python`), and name it by `environment:`.")  # fmt: skip
        return None
    say(f"{PYTHON} is not in the PATH there; it was found as")
    for path in found:
        say(f"  python:{path}")
    return answers.text("Environment that runs your functions", "--environment", f"python:{found[0]}")


def find(connection: HostConnection) -> list[str]:
    """Their absolute paths, each once, the likeliest first."""
    argv = ["/bin/sh", "-c", _LOOK, "sh", PYTHON, PYTHON.removeprefix("python")]
    answer = connection.run(argv, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
    lines = answer.out.decode("utf-8", "replace").splitlines()
    return list(dict.fromkeys(line for line in lines if line.startswith("/")))[:_MOST]
