"""The program by which an environment's own Python tells of itself: path, version, prefix, and what activating it sets.

Runs on the host under Python 3.6 and up, as `python -I -c PROGRAM`, and prints one JSON object as its last line. For
`existing`, which runs it at the first call; a builder finds the same by its own `activation`, once.
"""

from __future__ import annotations

# The scripts of activate.d are sourced in an empty environment: what is there afterwards is what they set. A conda that
# is installed on the machine has no part in it.
PROGRAM = r"""
import importlib.util, json, os, subprocess, sys
folder, real = os.path.dirname(sys.executable), os.path.realpath
named = all(real(os.path.join(folder, name)) == real(sys.executable) for name in ("python", "python3"))
conda = os.path.isdir(os.path.join(sys.prefix, "conda-meta"))
source = 'for f in "$1"/etc/conda/activate.d/*.sh; do [ -r "$f" ] && . "$f"; done >/dev/null 2>&1; exec env -0'
shell = next((each for each in ("/bin/bash", "/bin/sh") if os.path.exists(each)), "/bin/sh")
def activated(prefix):
    start = {"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": os.path.basename(prefix), "CONDA_SHLVL": "1",
             "HOME": os.path.expanduser("~"), "PATH": os.path.join(prefix, "bin") + ":/usr/bin:/bin"}
    try:
        ran = subprocess.run([shell, "-c", source, "sh", prefix], env=start, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return {}
    pairs = [line.partition("=") for line in os.fsdecode(ran.stdout).split("\0")]
    ours = set(start) | {"PWD", "OLDPWD", "SHLVL", "_"}
    return {name: value for name, separator, value in pairs if separator and name not in ours}
has_scripts = conda and os.path.isdir(os.path.join(sys.prefix, "etc", "conda", "activate.d"))
missing = [name for name in needed if importlib.util.find_spec(name) is None]
print(json.dumps({"path": sys.executable, "version": list(sys.version_info[:2]), "prefix": sys.prefix, "named": named,
                  "missing": missing,
                  "conda": conda, "venv": sys.prefix != sys.base_prefix,
                  "set": activated(sys.prefix) if has_scripts else {}}))
"""
