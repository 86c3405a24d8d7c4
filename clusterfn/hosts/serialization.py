"""The package `bridge.serialization`, loaded here under the name that it has on a host.

A pickle names the modules of the functions that rebuild it, so both sides must know them by one name:
`_clusterfn_wire`. `_clusterfn_wire.cloudpickle` is a second copy of cloudpickle, to which streams may refer.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

NAME = "_clusterfn_wire"
_OURS = Path(__file__).parents[1] / "bridge" / "serialization"
# On a host, the bridge contains the package only once, next to the library.
_FOLDER = _OURS if _OURS.is_dir() else Path(__file__).parents[3] / NAME


class _WireFinder:
    """Finds the package and its cloudpickle by these names, so that `import` loads each once, whatever the thread."""

    def find_spec(self, name: str, path: object, target: object = None, /) -> ModuleSpec | None:
        if name not in (NAME, f"{NAME}.cloudpickle"):
            return None
        folder = _FOLDER if name == NAME else cloudpickle_folder()
        return importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


# Last, because on a host the package and its cloudpickle lie where Python finds them by itself.
sys.meta_path.append(_WireFinder())


@functools.cache
def part(name: str) -> ModuleType:
    """Return a module of the package, such as `container`, `exceptions` or `pickler`."""
    return importlib.import_module(f"{NAME}.{name}")


def cloudpickle_folder() -> Path:
    """Return the folder with the source of the installed cloudpickle, or of the one that the bridge has."""
    if (_FOLDER / "cloudpickle").is_dir():
        return _FOLDER / "cloudpickle"
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("cloudpickle is not installed: pip install 'cloudpickle>=3.1'", name="cloudpickle")
    return Path(spec.origin).parent
