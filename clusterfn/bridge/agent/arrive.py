"""How the agent becomes a package on a host that has no file of it: a finder of modules in what was sent.

Executed first there, by itself: it imports nothing of the package but its loop, by the package's name there.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Optional

PACKAGE = "_clusterfn_agent"


class Sent:
    """Finds and loads the package's modules; `sources` are their texts by the names of their files."""

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
        """As modules are made usually."""

    def exec_module(self, module: "ModuleType") -> None:
        exec(compile(self.get_source(module.__name__), self.shown(module.__name__), "exec"), module.__dict__)

    def get_source(self, name: str) -> str:
        """Asked for by tracebacks too, which then show the lines."""
        return self.sources[self.file_of(name)]

    def shown(self, name: str) -> str:
        """A name that no file has, or a traceback would show that file's lines."""
        return "clusterfn-agent/" + self.file_of(name)


def start(sources: "Dict[str, str]", marker: str) -> None:
    """Make the package of these sources and serve until the client is gone."""
    sys.meta_path.insert(0, Sent(sources))
    importlib.import_module(PACKAGE + ".loop").main(marker)
