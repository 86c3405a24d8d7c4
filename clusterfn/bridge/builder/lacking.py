"""Which archives of a plan are not here, and which of these the host cannot fetch: asked by the client before it sends.

A short request for each package to the servers that answer, side by side.
"""

import os
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from ..layout import MANIFEST, blob, package_dir
from . import fetch, zstd
from .plan import CLUSTERFN, CONDA, WHEEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .plan import Package, Plan

_PATIENCE_S = 8.0
_AT_ONCE = 8


def lacking(plan: "Plan") -> "dict[str, Any]":
    """The SHA-256 of what is missing, of what is unreachable among it, and the sizes of what can be fetched.

    Where nothing is to be fetched, all that is missing is unreachable.
    """
    missing = [each for each in _wanted(plan) if not _is_there(plan, each)]
    reached, sizes = _ask(missing) if plan.fetch else ({}, {})
    return {
        "missing": [each.sha256 for each in missing],
        "unreachable": [each.sha256 for each in missing if not reached.get(_origin(each))],
        "sizes": sizes,
    }


def _ask(missing: "list[Package]") -> "tuple[dict[str, bool], dict[str, int]]":
    """Which servers answer, asked for one package each; then the others' sizes of those that do."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        origins = _origins(missing)
        reached = dict(zip(origins, (size is not None for size in pool.map(_size, origins.values()))))
        reachable = [each for each in missing if reached[_origin(each)]]
        sizes = zip(reachable, pool.map(_size, reachable))
        return reached, {each.sha256: size for each, size in sizes if size}


def _wanted(plan: "Plan") -> "list[Package]":
    wanted = {each.sha256: each for each in plan.packages}
    if plan.zstd is not None and any(each.kind == CONDA for each in plan.packages) and not zstd.is_there():
        wanted[plan.zstd.sha256] = plan.zstd
    return list(wanted.values())


def _is_there(plan: "Plan", package: "Package") -> bool:
    unpacked = os.path.join(package_dir(plan.root, package.sha256), MANIFEST)
    ours = plan.installer == CLUSTERFN or package.kind == WHEEL  # conda wants the archive
    return (ours and os.path.exists(unpacked)) or os.path.exists(blob(plan.root, package.sha256))


def _origin(package: "Package") -> str:
    """The server; of a file the file itself."""
    parts = urllib.parse.urlsplit(package.url)
    return package.url if parts.scheme == "file" else "%s://%s" % (parts.scheme, parts.netloc)


def _origins(packages: "list[Package]") -> "dict[str, Package]":
    return {_origin(each): each for each in packages}


def _size(package: "Package") -> "Optional[int]":
    """How large the archive is, 0 if its server does not say; None if it cannot be had."""
    path = fetch.local_path(package.url)
    if path or not package.url:
        return os.stat(path).st_size if os.path.isfile(path) else None
    request = fetch.request(package.url, 0)
    request.get_method = lambda: "HEAD"  # type: ignore[method-assign]
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            return int(answer.headers.get("Content-Length") or 0)
    except (OSError, ValueError):
        return None
