"""Keep the modules of the bridge in the agent, whose forks then run `supervise.py` without loading them."""

import importlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

_PACKAGE = "_clusterfn"  # of the bridge
_MODULES = (_PACKAGE + ".bridge.supervisor.program", _PACKAGE + ".bridge.supervisor.commands")


class LoadedBridge:
    """The modules of `supervise.py` in this process, from their second use on: they take longer than a fork."""

    _used = ""

    def use(self, folder: str) -> None:
        """Load the modules of a bridge that was used last time as well, unless those of another one are here."""
        if self._used == folder and _PACKAGE not in sys.modules:
            sys.path.insert(0, folder)
            try:
                for name in _MODULES:
                    importlib.import_module(name)
            except Exception:  # noqa: BLE001 - whatever is wrong with it, its fork says so
                _forget()
            finally:
                sys.path.remove(folder)
        self._used = folder


def supervise(argv: "List[str]") -> int:
    """Run `supervise.py` with these arguments in a fork of the agent, which then ends with this status."""
    sys.argv, folder = argv, os.path.dirname(argv[0])
    package = sys.modules.get(_PACKAGE)
    if package is not None and os.path.join(folder, _PACKAGE) not in package.__path__:
        _forget()
    sys.path.insert(0, folder)
    return int(importlib.import_module(_MODULES[0]).main(argv[1:]))


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
        del sys.modules[name]
