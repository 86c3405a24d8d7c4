"""The package `bridge.serialization`, loaded here under the name that it has on a host.

A pickle names the modules of the functions that rebuild it, so both sides must know them by one name:
`_clusterfn_wire`. `_clusterfn_wire.cloudpickle` is a second copy of cloudpickle, to which streams may refer.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType

NAME = "_clusterfn_wire"
_lock = threading.Lock()
_OURS = Path(__file__).parents[1] / "bridge" / "serialization"
# On a host, the bridge contains the package only once, next to the library.
_FOLDER = _OURS if _OURS.is_dir() else Path(__file__).parents[3] / NAME


@functools.cache
def part(name: str) -> ModuleType:
    """Return a module of the package, such as `container`, `exceptions` or `pickler`."""
    # Calls may be sent from several threads, and a module must be loaded only once.
    with _lock:
        if NAME not in sys.modules:
            _load(NAME, _FOLDER)
        if f"{NAME}.cloudpickle" not in sys.modules and not (_FOLDER / "cloudpickle").exists():
            _load(f"{NAME}.cloudpickle", cloudpickle_folder())
    return importlib.import_module(f"{NAME}.{name}")


def cloudpickle_folder() -> Path:
    """Return the folder with the source of the installed cloudpickle, or of the one that the bridge has."""
    if (_FOLDER / "cloudpickle").is_dir():
        return _FOLDER / "cloudpickle"
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("cloudpickle is not installed: pip install 'cloudpickle>=3.1'", name="cloudpickle")
    return Path(spec.origin).parent


def _load(name: str, folder: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # This includes Ctrl-C: a later import must not find a module that is half loaded.
        del sys.modules[name]
        raise
