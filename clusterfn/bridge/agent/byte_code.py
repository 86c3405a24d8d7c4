"""Let byte code that a full disk has cut count as missing: Python up to 3.13 may write it, and never reads its source.

The agent imports this module. The scripts in `stubs` and the builder execute its text, which has no byte code.
"""

import os
import sys


def guard() -> None:
    """Change how this process reads and writes byte code, of whatever module."""
    machinery = sys.modules.get("_frozen_importlib_external")
    read, write = (getattr(machinery, name, None) for name in ("_compile_bytecode", "_write_atomic"))

    def read_or_compile(data, name=None, bytecode_path=None, source_path=None):  # type: ignore[no-untyped-def]
        try:
            return read(data, name, bytecode_path, source_path)  # type: ignore[misc]
        except (EOFError, ValueError, TypeError, ImportError, MemoryError):
            if source_path is None:
                raise
        try:  # noqa: SIM105 - contextlib would be loaded here at each start
            os.unlink(bytecode_path)
        except OSError:
            pass
        with open(source_path, "rb") as file:
            return compile(file.read(), source_path, "exec", dont_inherit=True)

    def write_whole(path, data, *mode):  # type: ignore[no-untyped-def]
        write(path, data, *mode)  # type: ignore[misc]
        if os.stat(path).st_size != len(data):
            os.unlink(path)
            raise OSError(28, os.strerror(28), path)

    if read is not None and write is not None:
        machinery._compile_bytecode, machinery._write_atomic = read_or_compile, write_whole  # type: ignore[union-attr]


guard()
