"""The layout of a whole environment, from its plan and the manifests of its packages."""

import os

from ..layout import MANIFEST, package_dir
from . import conda, manifest, wheel
from .failure import Failed
from .place import WRITE, Holed, Layout, Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from .plan import Package, Plan

    Known = tuple[Package, str, manifest.Manifest]

_HISTORY = b"==> made by clusterfn from a lock <==\n"


def layout(plan: "Plan", prefix: str) -> Layout:
    """Everything in the environment of a plan.

    Raises:
        Holed: A package is not there, or has lost its manifest.
    """
    known = _known(plan)
    python = next((each for _, _, each in known if each.kind == "conda" and each.name == "python"), None)
    if python is None:
        raise Failed("the lock has no python", stage="plan", hint="name python in the environment's specification")
    made = Layout(prefix, plan.python, python.facts.get("python_site_packages_path"))
    _place(made, known)
    made.add(Target("conda-meta/history", WRITE, known[0][1], content=_HISTORY))
    return made


def beside(plan: "Plan", prefix: str, site: "Optional[str]") -> Layout:
    """What is added to an environment that has its Python already.

    Raises:
        Holed: As `layout`.
    """
    made = Layout(prefix, plan.python, site)
    _place(made, _known(plan))
    return made


def _place(made: Layout, known: "list[Known]") -> None:
    for package, folder, each in known:
        (conda if each.kind == "conda" else wheel).place(made, each, package, folder)


def _known(plan: "Plan") -> "list[Known]":
    found = [(package, package_dir(plan.root, package.sha256)) for package in plan.packages]
    return [(package, folder, _manifest(folder)) for package, folder in found]


def _manifest(folder: str) -> manifest.Manifest:
    found = manifest.read(os.path.join(folder, MANIFEST))
    if found is None:
        raise Holed(folder)
    return found
