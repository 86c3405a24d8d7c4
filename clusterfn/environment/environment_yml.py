"""Read environment.yml as a `Specification`, with file and line in every error; `project_files` reads the others.

Exports of a whole environment are recognised: their builds fit one platform only, so they are removed, and the user is
informed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from clusterfn.config.yamlfile import Value, parse
from clusterfn.environment import package_sources
from clusterfn.environment.project import PYPROJECT, UV_LOCK
from clusterfn.environment.requirement_lines import RequirementLines
from clusterfn.environment.specification import WITH_EXTRAS, Requirement, Specification, conda_requirement
from clusterfn.errors import ConfigError, did_you_mean

SUFFIXES = (".yml", ".yaml")
LOCK_SUFFIXES = ("conda-lock.yml", "conda-lock.yaml")
# PEP 751 names these files.
_PYLOCK = re.compile(r"pylock(?:\.[^.]+)?\.toml")
_KEYS = (
    "name", "channels", "dependencies", "platforms", "prefix", "category", "pip-repositories", "allow-pypi-requests",
)  # fmt: skip
_LISTS = ("channels", "pip-repositories")
_ADVICE = {"variables": "set them with env={…} of @cluster, or `env:` of the host in clusterfn.yml"}
# The comment behind a line by which conda-lock limits it to systems. Hosts run Linux.
_SELECTOR = re.compile(r"#\s*\[(\w+)(?:\s+[\w\s]+)?\]\s*$")
_OF_LINUX, _OF_OTHERS = ("linux", "linux64", "unix"), ("osx", "osx64", "arm64", "win", "win64")
_BUILD = re.compile(r"(?P<name>[^=<>!\s]+)=(?P<version>[^=<>!*\s]+)=(?P<build>[^=<>!*\s]+)")
# What an export of Windows or macOS has that no program on Linux needs: whole names, as `windrose` is not Windows' own.
# conda writes the system of a compiler behind its name: `clang_osx-64`.
_FOREIGN = re.compile(
    r"vc|vc14_runtime|vs20\d\d_runtime|vs_runtime|vcomp|vcomp14|ucrt|winpty|pywinpty|wincertstore|win_inet_pton|winsdk|"
    r"win32_setctime|win10toast|windows-curses|pywin32|pywin32-ctypes|pywinauto|comtypes|wmi|menuinst|anaconda_prompt|"
    r"anaconda_powershell_prompt|(?:console|powershell)_shortcut(?:_mini(?:conda|forge))?|(?:m2w64|msys2)-.+|"
    r"libcxx|appnope|pyobjc-.+|python\.app|cctools|ld64|.+_(?:osx|win)-(?:32|64|arm64)"
)
_PYTORCH_ENDED = "the channel pytorch has no release after PyTorch 2.5: conda-forge has pytorch, PyPI has torch"
_FROM_HISTORY = "`conda env export --from-history` writes only what you asked for"


def locate_file(text: str, folders: Sequence[Path]) -> Path:
    """Find the file relative to the first of the folders that has it; raise ConfigError if none has."""
    path = Path(text).expanduser()
    places = [path] if path.is_absolute() else [folder / path for folder in dict.fromkeys(folders)]
    for place in places:
        if place.is_file():
            return place.absolute()
    patterns = ("*.y*ml", "*.toml", "*.lock", "*.txt")
    folders_there = [place.parent for place in places if place.parent.is_dir()]
    here = {each.name for folder in folders_there for pattern in patterns for each in folder.glob(pattern)}
    here.discard("clusterfn.yml")
    looked = " and ".join(str(place.parent) for place in places)
    hint = "a relative path counts from the working directory, then from the folder of the script that runs"
    raise ConfigError(f"there is no {path.name} in {looked}{did_you_mean(path.name, here)}", hint=hint)


def read_file(path: Path, parts: Sequence[str] = ()) -> Specification:
    """Read the specification in a file, or accept the lock that it is; raise ConfigError with the line that is wrong.

    Args:
        parts: The extras and groups of a project that are wanted: "gpu", "group:dev".
    """
    is_toml = path.name in (PYPROJECT, UV_LOCK) or bool(_PYLOCK.fullmatch(path.name))
    if parts and not is_toml:
        hint = f'write environment="{path.name}", or name a pyproject.toml or its uv.lock'
        raise ConfigError(f"{path.name} has no extras and no groups, but {', '.join(parts)} is named", hint=hint)
    if is_toml or path.suffix.lower() == ".txt":
        # Most calls name no such file, so they need not wait for this import.
        from clusterfn.environment import project_files

        return project_files.read_project(path, parts)
    if path.name.lower().endswith(LOCK_SUFFIXES):
        return Specification(path.name, file=path, given_lock=path)
    if path.suffix.lower() not in SUFFIXES:
        hint = "name an environment.yml, pyproject.toml, uv.lock, pylock.toml or requirements.txt, or packages=[…]"
        raise ConfigError(f"{path} is not an environment.yml", hint=hint)
    data = path.read_bytes()
    if re.search(rb"^package:", data, re.MULTILINE) and re.search(rb"^metadata:", data, re.MULTILINE):
        # It is a lock of conda-lock's with another name.
        return Specification(path.name, file=path, given_lock=path)
    if not data.strip():
        raise ConfigError(f"{path} is empty", hint='write "dependencies:" and the packages below it')
    return _read(parse(data, str(path)), path)


def _read(tree: Value, path: Path) -> Specification:
    keys = tree.mapping(_KEYS, _ADVICE)
    if "dependencies" not in keys:
        raise tree.error('there is no "dependencies:"', "list the packages below that key")
    texts = {name: value.as_lines() for name, value in keys.items() if name in _LISTS and value.kind != "null"}
    conda, pip = list[Requirement](), RequirementLines(path.parent)
    for index in texts.get("pip-repositories", ()):
        pip.add(f"--extra-index-url {index}")
    for item in _items(keys["dependencies"]):
        if item.kind == "map":
            for line in _items(item.mapping(("pip",))["pip"]):
                pip.add(line.as_text(), f"{path.name}:{line.line + 1}")
            continue
        text, place = item.as_text(), f"{path.name}:{item.line + 1}"
        if WITH_EXTRAS.match(text):
            what = f"{place}: {text!r} has extras, and packages of conda have none"
            raise ConfigError(what, hint="write the line below `pip:`")
        conda.append(conda_requirement(text, place))
    written = [name for name in texts.get("channels", ()) if name != "nodefaults"]
    named = [each.channel for each in conda if each.channel]
    channels = dict.fromkeys([*(written or package_sources.usual_channels()), *named])
    ended = (_PYTORCH_ENDED,) if "pytorch" in written else ()
    spec = Specification(path.name, tuple(channels), tuple(conda), file=path, sentences=ended)
    return _lifted(pip.added_to(spec), keys.get("prefix"))


def _items(value: Value) -> Iterator[Value]:
    """Yield the lines that are for Linux."""
    if value.kind == "null":
        return
    if value.kind != "list":
        raise value.error(f"expected a list of packages, found {value.written}", 'start each line with "- "')
    for line in value.values:
        selector = _SELECTOR.search(line.source.lines[line.line])
        if selector and selector[1] not in (known := (*_OF_LINUX, *_OF_OTHERS)):
            raise line.error(f"[{selector[1]}] names no system", f"write one of {', '.join(known)}, or remove it")
        if not selector or selector[1] in _OF_LINUX:
            yield line


def _lifted(spec: Specification, prefix: Value | None) -> Specification:
    """Remove from an export what fits only the machine where it was made."""
    built = [each for each in spec.conda if _BUILD.fullmatch(each.text)]
    exported = prefix is not None or (len(built) >= 3 and len(built) == len(spec.conda))
    if not exported:
        return spec
    kept = [each for each in spec.conda if not _FOREIGN.fullmatch(each.name)]
    conda = tuple(replace(each, text=_BUILD.sub(r"\g<name> ==\g<version>", each.text)) for each in kept)
    of = f" of {prefix.text} (line {prefix.line + 1})" if prefix is not None else ""
    lifted = f": the build strings of {len(built)} packages are dropped, their versions kept" if built else ""
    sentences = [*spec.sentences, f"{spec.title} is an export{of}{lifted}; {_FROM_HISTORY}"]
    gone = [each.name for each in spec.conda if each not in kept]
    if gone:
        sentences.append(f"{spec.title}: skipped, because they belong to Windows or macOS: {', '.join(gone)}")
    return replace(spec, conda=conda, exported=True, sentences=tuple(sentences))
