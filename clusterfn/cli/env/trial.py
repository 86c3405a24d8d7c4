"""Whether an environment works: a program by which its own Python imports what was asked for, and a GPU calculation.

Both run on the host, from Python 3.9 on.
"""

from __future__ import annotations

from collections.abc import Callable

MARK = "clusterfn imports "

# A package's name says which distribution it is, and that which modules it has; conda calls torch pytorch.
IMPORTS = r"""
import importlib, importlib.metadata as metadata, importlib.util, json, sys
NAMES = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cuda": "torch"}

def modules(name):
    name = NAMES.get(name, name)
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        plain = name.replace("-", "_")
        return [plain] if plain.isidentifier() and importlib.util.find_spec(plain) else []
    listed = (found.read_text("top_level.txt") or "").split()
    if not listed:
        places = [path.parts for path in found.files or () if path.suffix in (".py", ".so") and len(path.parts) < 3]
        listed = [parts[0].partition(".")[0] for parts in places if parts[-1] in ("__init__.py", parts[0])]
    return sorted({each for each in listed if each.isidentifier() and not each.startswith("_")})

told = {"python": "%d.%d.%d" % sys.version_info[:3], "imported": [], "failed": {}}
for name in [each for wanted in sys.argv[1:] for each in modules(wanted) if wanted not in ("python", "pip")]:
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # importing runs a package's own code, which may raise anything
        told["failed"][name] = "%s: %s" % (type(error).__name__, error)
        continue
    version = getattr(module, "__version__", None)
    told["imported"].append("%s %s" % (name, version) if version else name)
    if name == "torch":
        told["cuda"] = module.version.cuda
print("\n" + MARK + json.dumps(told), flush=True)
""".replace("MARK", repr(MARK))

TOTAL = 4.0  # what the calculation gives
OnGpu = tuple[str, str, str, bool, int, str, float]


def kernel() -> Callable[[], OnGpu | None]:
    """A function that calculates on a GPU by PyTorch and tells of it; None where there is no PyTorch."""

    def kernel() -> OnGpu | None:  # travels by value, as it has no name that can be imported
        import importlib
        import importlib.util
        import platform

        if importlib.util.find_spec("torch") is None:
            return None
        torch = importlib.import_module("torch")
        build = platform.node(), torch.__version__, torch.version.cuda
        if not torch.cuda.is_available():
            return (*build, False, 0, "", 0.0)
        capability = ".".join(map(str, torch.cuda.get_device_capability(0)))
        ones = torch.ones(2, device="cuda")
        return (*build, True, torch.cuda.device_count(), capability, float((ones + ones).sum()))

    return kernel
