"""Compile the files that stdin names (JSON pairs: source, byte code). A program for the environment's own Python.

Files that are no valid Python (templates, tests of other versions) are skipped. Imports nothing of the builder.
"""

import json
import os
import py_compile
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A sibling may hide the standard library from a script: the builder's folder is on no path of a script run by -I.
_MODE = {"invalidation_mode": py_compile.PycInvalidationMode.UNCHECKED_HASH} if sys.version_info >= (3, 7) else {}


def main() -> None:
    """Compile them all."""
    for source, target in json.load(sys.stdin):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        mode: "dict[str, Any]" = dict(_MODE)
        try:
            py_compile.compile(source, cfile=target, dfile=source, doraise=True, **mode)
        except (py_compile.PyCompileError, ValueError, RecursionError, MemoryError):
            continue


if __name__ == "__main__":
    main()
