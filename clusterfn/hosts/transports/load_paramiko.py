"""Import paramiko without `invoke`, which takes longer than paramiko itself and serves only its `Match exec`.

clusterfn rejects `Match exec` where it reads an ssh configuration by paramiko. A program that uses it itself gets
`invoke` when paramiko first calls it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any


class _LaterInvoke(types.ModuleType):
    """Take the place of `invoke`, and import it at its first use. Not importlib's LazyLoader: `import` loads that."""

    def __getattr__(self, name: str) -> Any:
        _remove(self)
        return getattr(importlib.import_module("invoke"), name)


def load_paramiko() -> None:
    """Import paramiko unless it is imported already; `invoke` comes with its first use."""
    later = _LaterInvoke("invoke")
    if "paramiko" not in sys.modules and "invoke" not in sys.modules and importlib.util.find_spec("invoke") is not None:
        # Threads need no lock: `setdefault` never replaces what is there, and each removes only what it put there.
        sys.modules.setdefault("invoke", later)
    try:
        importlib.import_module("paramiko")
    finally:
        _remove(later)


def _remove(later: _LaterInvoke) -> None:
    """Let the next `import invoke` find the real one."""
    if sys.modules.get("invoke") is later:
        del sys.modules["invoke"]
