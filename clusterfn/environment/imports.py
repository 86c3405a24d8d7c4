"""Make a specification from the function's imports: the caller's Python and the installed versions of the modules.

Nothing is imported; the metadata of installed projects is read.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from clusterfn.environment import condarc
from clusterfn.environment.project import normalize
from clusterfn.environment.requirement_lines import RequirementLines
from clusterfn.environment.specification import Specification, conda_requirement

_TRAVELS = ("clusterfn", "cloudpickle")  # they are sent with every call


def automatic(names: Iterable[str], python: tuple[int, int]) -> Specification:
    """Make the specification for imports of these top-level modules, with the caller's Python."""
    lines, sentences = RequirementLines(Path.cwd()), []
    owners = projects_by_module()
    found = {normalize(project): project for name in names for project in owners.get(name, ())}
    for each in sorted(found.keys() - set(_TRAVELS)):  # the standard library and the user's own belong to no project
        project = importlib.metadata.distribution(found[each])
        name = normalize(project.metadata["Name"])
        why_not = _origin(project)
        if why_not:
            sentences.append(f"{name} {why_not}")
        else:
            lines.add(f"{name}=={project.version.partition('+')[0]}")
    minor = conda_requirement(f"python={python[0]}.{python[1]}")
    listed = ", ".join([f"Python {python[0]}.{python[1]}", *(each.text.replace("==", " ") for each in lines.wanted)])
    said = f"no environment is set: clusterfn builds one from your imports: {listed}"
    spec = Specification("what the function imports", condarc.usual_channels(), (minor,), sentences=(said, *sentences))
    return lines.added_to(spec)


def needed(names: Iterable[str]) -> list[str]:
    """List the modules that installed projects provide; neither the standard library nor what clusterfn sends."""
    owners = projects_by_module()
    return sorted(name for name in names if {normalize(each) for each in owners.get(name, ())} - set(_TRAVELS))


@functools.cache
def projects_by_module() -> Mapping[str, Sequence[str]]:
    """Map each installed top-level module to its projects, as importlib.metadata does from Python 3.10 on."""
    known = getattr(importlib.metadata, "packages_distributions", None)
    if known is not None:
        return dict(known())
    owners: dict[str, list[str]] = {}
    for project in importlib.metadata.distributions():
        files = {path.parts[0].partition(".")[0] for path in project.files or () if path.suffix == ".py"}
        for name in (project.read_text("top_level.txt") or "").split() or files:
            owners.setdefault(name, []).append(project.metadata["Name"])
    return owners


def _origin(project: importlib.metadata.Distribution) -> str:
    """Say why no index has this project; "" if one may have it."""
    if (project.read_text("INSTALLER") or "").strip() == "conda":  # whose folders were those of the build
        return ""
    origin = json.loads(project.read_text("direct_url.json") or "{}")
    if (origin.get("dir_info") or {}).get("editable"):
        return "is editable: clusterfn sends it as source, unless it is compiled"
    if "vcs_info" in origin or "dir_info" in origin:
        return f"was installed from {origin['url']}, which a lock cannot name: it is skipped"
    return ""
