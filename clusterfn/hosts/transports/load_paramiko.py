"""Import paramiko without `invoke`, which takes longer than paramiko itself and serves only its `Match exec`.

clusterfn rejects `Match exec` where it reads an ssh configuration by paramiko. A program that uses it itself gets
`invoke` when paramiko first calls it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import types
from typing import Any

_loading = threading.Lock()


class _LaterInvoke(types.ModuleType):
    """Take the place of `invoke`, and import it at its first use. Not importlib's LazyLoader: `import` loads that."""

    def __getattr__(self, name: str) -> Any:
        _remove(self)
        return getattr(importlib.import_module("invoke"), name)


def load_paramiko() -> None:
    """Import paramiko unless it is imported already; `invoke` comes with its first use."""
    with _loading:
        if "paramiko" in sys.modules or "invoke" in sys.modules or importlib.util.find_spec("invoke") is None:
            importlib.import_module("paramiko")
            return
        later = sys.modules["invoke"] = _LaterInvoke("invoke")
        try:
            importlib.import_module("paramiko")
        finally:
            _remove(later)


def _remove(later: _LaterInvoke) -> None:
    """Let the next `import invoke` find the real one."""
    if sys.modules.get("invoke") is later:
        del sys.modules["invoke"]
