"""Brings what was written to the disk, so that what is READY survives a crash of the machine."""

import ctypes
import os


def everything(folder: str) -> None:
    """Flush the whole file system of a folder: one call instead of one for each of 20000 files."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        sync = getattr(ctypes.CDLL(None), "syncfs", None)
        if sync is None or sync(fd):
            os.sync()
    finally:
        os.close(fd)


def write(path: str, data: bytes) -> None:
    """A file whose content is on the disk when this returns."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
