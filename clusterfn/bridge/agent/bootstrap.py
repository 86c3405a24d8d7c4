"""Import the agent on a host that has no file of it: a finder of modules in the sources that were sent.

The loader that clusterfn/hosts/rpc/boot.py sends executes this file by itself. It imports nothing of the package but
`server`, by the name that the package has there.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Optional

PACKAGE = "_clusterfn_agent"


class SourceFinder:
    """Finds and loads the package's modules; `sources` maps file names to texts."""

    def __init__(self, sources: "Dict[str, str]") -> None:
        self.sources = sources

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Optional[ModuleSpec]":
        if self.file_of(name) not in self.sources:
            return None
        return ModuleSpec(name, self, origin=self.file_of(name), is_package=name == PACKAGE)  # type: ignore[arg-type]

    def file_of(self, name: str) -> str:
        package, _, module = name.partition(".")
        return (module or "__init__") + ".py" if package == PACKAGE else ""

    def create_module(self, spec: ModuleSpec) -> None:
        """Create it as usual."""

    def exec_module(self, module: "ModuleType") -> None:
        exec(compile(self.get_source(module.__name__), self.display_name(module.__name__), "exec"), module.__dict__)

    def get_source(self, name: str) -> str:
        """Return the source, by which tracebacks show lines too."""
        return self.sources[self.file_of(name)]

    def display_name(self, name: str) -> str:
        """Return a name that no file has, or a traceback would show that file's lines."""
        return "clusterfn-agent/" + self.file_of(name)


def start(sources: "Dict[str, str]", marker: str) -> None:
    """Make these sources importable and serve until the client disconnects."""
    sys.meta_path.insert(0, SourceFinder(sources))
    importlib.import_module(PACKAGE + ".server").main(marker)
