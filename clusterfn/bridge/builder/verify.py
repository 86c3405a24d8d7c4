"""Whether an environment works: its own Python starts, is the right one, and imports what was asked for."""

import json
import os

from ..supervisor.text import native
from .failure import Failed
from .running import Ended, Patience, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .plan import Plan

_MARK = "clusterfn verified "
_CODE = """
import importlib, json, sys, sysconfig
found = {"python": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix, "modules": {}, "torch_cuda": None}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    version = getattr(module, "__version__", None)
    found["modules"][name] = None if version is None else str(version)
    if name == "torch":
        found["torch_cuda"] = module.version.cuda
print("\\n" + MARK + json.dumps(found), flush=True)
"""


def verify(plan: "Plan", prefix: str, stopping: "Callable[[], None]") -> "dict[str, Any]":
    """What the environment's Python says of itself.

    Raises:
        Failed: With the last lines that it printed.
    """
    argv = [os.path.join(prefix, "bin", "python"), "-I", "-B", "-c", _CODE.replace("MARK", repr(_MARK))]
    patience = Patience(plan.timeout_s)
    try:
        output = run(argv + plan.verify, prefix, {}, stopping, patience).decode("utf-8", "replace")
    except Ended as error:
        why = error.evidence[-1] if error.evidence else error  # Python's last line names its exception
        raise _failed("does not import %s: %s" % (", ".join(plan.verify) or "anything", why), error.evidence) from error
    found = next((line[len(_MARK) :] for line in output.splitlines() if line.startswith(_MARK)), None)
    if found is None:
        raise _failed("did not say which Python it is", output.splitlines()[-20:])
    facts = dict(native(json.loads(found)))
    wanted = "%d.%d." % plan.python
    if not facts["python"].startswith(wanted):
        raise _failed("is Python %s, the lock wants %s" % (facts["python"], wanted + "*"), [])
    if os.path.realpath(facts["prefix"]) != os.path.realpath(prefix):
        raise _failed("has the prefix %s instead of %s" % (facts["prefix"], prefix), [])
    return facts


def _failed(what: str, evidence: "list[str]") -> Failed:
    hint = "see the last lines of its Python; a library that the host lacks must be in the specification"
    return Failed("the environment was built, and %s" % what, stage="verify", evidence=evidence, hint=hint)
