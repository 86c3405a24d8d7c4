"""The program by which an environment's own Python imports what was asked for. It runs on the host, from 3.9 on."""

from __future__ import annotations

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
