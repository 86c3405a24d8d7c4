"""`resume=`: finds the job whose checkpoint a call is to begin with, before anything is sent.

The host makes the copy when the job begins (`bridge/supervisor/checkpoint.py`). Called by `dispatch`.
"""

from __future__ import annotations

import json
import posixpath

from clusterfn import layout, ledger
from clusterfn.errors import ConfigError
from clusterfn.session import Session

_TIMEOUT_S = 60.0
_IDS = frozenset("0123456789abcdef")
# What lies in the checkpoints of jobs whose ids begin so, and how their attempts ended, one JSON object for each.
_LOOK = f"""
for job in "$1"*; do
  [ -f "$job/{layout.SPEC}" ] || continue
  echo "${{job##*/}}" "$(ls -A "$job/{layout.CHECKPOINT}" 2>/dev/null | head -n 1 | wc -l)"
  cat "$job/{layout.ATTEMPTS}"/*/{layout.OUTCOME} 2>/dev/null
done
exit 0
"""


def to_resume(session: Session, job_id: str) -> str:
    """The whole id of the job that `resume=` names.

    Raises:
        ConfigError: The host has no such job, it still runs, or it left no checkpoint.
    """
    host = session.host.name
    place = posixpath.join(session.root, layout.JOBS, job_id)
    answer = session.connection.run(["/bin/sh", "-c", _LOOK, "sh", place]).result(_TIMEOUT_S)
    found: dict[str, tuple[bool, bool]] = {}
    for line in answer.out.decode("utf-8", "replace").splitlines():
        if line.startswith("{") and found:
            last = list(found)[-1]
            found[last] = (found[last][0], found[last][1] or bool(json.loads(line).get("final")))
        elif set(line.partition(" ")[0]) <= _IDS:
            name, _, count = line.partition(" ")
            found[name] = (count.strip() != "0", False)
    if not found:
        raise _not_there(host, job_id)
    if len(found) > 1:
        raise ConfigError(f"resume={job_id!r} fits {len(found)} jobs on {host}", evidence=[*found][:10], hint=_MORE)
    ((name, (kept, ended)),) = found.items()
    if not ended:
        raise ConfigError(f"resume={job_id!r}: that job still runs", hint=f"stop it first: clusterfn cancel {job_id}")
    if not kept:
        raise ConfigError(
            f"resume={job_id!r}: that job left no checkpoint on {host}",
            hint="let the function write into os.environ['CLUSTERFN_CHECKPOINT']; call again without resume=",
        )
    return name


_MORE = "give more digits"


def _not_there(host: str, job_id: str) -> ConfigError:
    elsewhere = sorted({entry.host for entry in ledger.entries(job_id)} - {host})
    if elsewhere:
        return ConfigError(
            f"resume={job_id!r}: that job's checkpoint is on {', '.join(elsewhere)}, and the call runs on {host}",
            hint=f'call it there: host="{elsewhere[0]}"',
        )
    return ConfigError(f"resume={job_id!r}: there is no such job on {host}", hint="clusterfn jobs lists what is there")
