"""What lies in the lab's channel: Pythons of this machine, wheels from PyPI as conda packages, and toys.

The toys have what real packages do to an installer: prefixes in texts and binaries, entry points, a post-link script,
and PyTorch builds that the machine's CUDA chooses among.
"""

from __future__ import annotations

import importlib.util
import marshal
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from . import pythons
from .condapackage import MOMENT, Entry, Package
from .processes import run

BOTH = (".conda", ".tar.bz2")
OLD = (".tar.bz2",)
MINORS = (9, 10, 11, 12, 13)
# What the channel for old condas has too: compressing by bzip2 takes most of the time.
OLD_MINORS = (9, 11)
NUMPY = {9: ("1.26.4",), 10: ("2.1.3",), 11: ("1.26.4", "2.1.3"), 12: ("2.1.3",), 13: ("2.1.3",)}
PURE = ("pip==25.3", "setuptools==80.9.0", "cloudpickle", "tqdm", "six")
# As long as conda-build makes it: what replaces it in a binary can only be shorter.
PLACEHOLDER = "/home/conda/feedstock_root/build_artifacts/" + "_h_env_placehold_" * 13
_SKIPPED = re.compile(r"(^|/)(tests?|__pycache__)/|\.(pyi|pxd|h|a)$")


def python(minor: int, scratch: Path) -> Package | None:
    """An interpreter of this machine, relocatable; None if there is none of that minor."""
    for executable in pythons.candidates(minor):
        prefix = pythons.prefix_of(executable, minor)
        if prefix is not None and not prefix.is_relative_to("/usr"):
            return _packed_python(minor, prefix, scratch / f"3.{minor}")
    return None


def _packed_python(minor: int, prefix: Path, copy: Path) -> Package:
    pythons.copy(prefix, copy, minor)
    _strip(copy)
    version = run([str(copy / "bin" / "python"), "-c", "import platform; print(platform.python_version())"]).strip()
    files = _with_byte_code(dict(_tree(copy, str(prefix))), minor)
    depends = (f"python_abi 3.{minor}.* *_cp3{minor}",)
    return Package("python", version, f"h0a1b2c3_0_cp3{minor}", files, depends=depends, formats=_formats(minor))


def _with_byte_code(files: dict[str, Entry], minor: int) -> dict[str, Entry]:
    """The same with byte code, as conda-build does it, if this interpreter is of that minor.

    Most tests install for it; compiling would take most of their time. Other packages leave it to who installs them.
    """
    if minor != sys.version_info[1]:
        return files
    compiled = {}
    for name, entry in files.items():
        if name.endswith(".py") and not entry.placeholder:  # what names the prefix will have another size
            try:
                code = compile(entry.data, name, "exec", dont_inherit=True, optimize=0)
            except (SyntaxError, ValueError):  # templates, and examples of what is invalid
                continue
            header = importlib.util.MAGIC_NUMBER + struct.pack("<LLL", 0, MOMENT, len(entry.data))
            place = importlib.util.cache_from_source(name, optimization="")
            compiled[place] = Entry(header + marshal.dumps(code))
    return {**files, **compiled}


def _formats(minor: int) -> tuple[str, ...]:
    return BOTH if minor in OLD_MINORS else (".conda",)


def _strip(folder: Path) -> None:
    """Debugging symbols out, where this machine can: they are most of the bytes."""
    tool = shutil.which("strip")
    if tool:
        libraries = [str(path) for path in folder.rglob("*.so*") if path.is_file() and not path.is_symlink()]
        subprocess.run([tool, "--strip-debug", *libraries], check=False, capture_output=True)


def _tree(folder: Path, prefix: str) -> Iterator[tuple[str, Entry]]:
    """Files of an interpreter, without its packages; texts that name the prefix are marked."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            yield name, Entry(link=str(path.readlink()))
        elif path.is_file() and "site-packages" not in path.parts and not _SKIPPED.search(name):
            data = path.read_bytes()
            named = path.suffix == ".py" and prefix.encode() in data
            yield name, Entry(data, path.stat().st_mode & 0o777, placeholder=prefix if named else "")


def abi(minor: int) -> Package:
    """The package that ties compiled packages to their Python, as on conda-forge."""
    constrains = (f"python 3.{minor}.*",)
    return Package("python_abi", f"3.{minor}", f"8_cp3{minor}", {}, 8, constrains=constrains, formats=BOTH)


def build_tools(folder: Path) -> list[Path]:
    """The wheels with which pip builds a source distribution, and those by which Python 3.6 reads .conda."""
    return [*(wheel(folder, name) for name in ("pip", "setuptools", "wheel")), wheel(folder, "zstandard==0.20.0", 6)]


def wheel(folder: Path, requirement: str, minor: int | None = None) -> Path:
    """A wheel of PyPI, downloaded once."""
    target = folder / (f"cp3{minor}" if minor else "any") / requirement
    if not list(target.glob("*.whl")):
        aim = [f"--python-version=3.{minor}", "--platform=manylinux2014_x86_64"] if minor else []
        options = ["--no-deps", "--only-binary=:all:", "-d", str(target), *aim]
        run([sys.executable, "-m", "pip", "download", "-q", *options, requirement])
    return next(target.glob("*.whl"))


def _content(path: Path, below: str) -> dict[str, Entry]:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/") and not _SKIPPED.search(name)]
        return {f"{below}/{name}": Entry(archive.read(name)) for name in names}


def numpy(folder: Path, version: str, minor: int) -> Package:
    files = _content(wheel(folder, f"numpy=={version}", minor), f"lib/python3.{minor}/site-packages")
    files = _with_byte_code(files, minor)
    depends = (f"python >=3.{minor},<3.{minor + 1}.0a0", f"python_abi 3.{minor}.* *_cp3{minor}")
    formats = _formats(minor) if version.startswith("1.") else (".conda",)
    return Package("numpy", version, f"py3{minor}h0123456_0", files, depends=depends, formats=formats)


def pure(folder: Path, requirement: str) -> Package:
    """A wheel of pure Python as a noarch package."""
    path = wheel(folder, requirement)
    name, version = path.name.split("-")[:2]
    files = _content(path, "site-packages")
    about = {place.rpartition("/")[2]: entry.data.decode() for place, entry in files.items() if ".dist-info/" in place}
    scripts = tuple(_console_scripts(about.get("entry_points.txt", "")))
    needed = re.search(r"^Requires-Python: (.+)$", about["METADATA"], re.MULTILINE)
    return noarch(name, version, files, scripts, (f"python {needed[1].replace(' ', '')}" if needed else "python",))


def _console_scripts(text: str) -> Iterator[str]:
    section = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        section = line if line.startswith("[") else section
        if section == "[console_scripts]" and line != section:
            yield re.sub(r"\s*=\s*", " = ", line)


def noarch(
    name: str, version: str, files: dict[str, Entry], scripts: tuple[str, ...] = (), depends: tuple[str, ...] = ()
) -> Package:
    return Package(
        name, version, "pyhd8ed1ab_0", files, depends=depends, noarch="python", entry_points=scripts, formats=BOTH
    )


def greeter() -> Package:
    """noarch: python with a module, a script of its own and an entry point."""
    module = b"def main():\n    import sys\n    print('hello from', sys.prefix)\n"
    script = b"#!/usr/bin/env python\nimport greeter\ngreeter.main()\n"
    files = {"site-packages/greeter.py": Entry(module), "python-scripts/greet-again": Entry(script, 0o755)}
    return noarch("greeter", "1.0", files, ("greet = greeter:main",), ("python >=3.9",))


def text_prefix() -> Package:
    """A script and a text in which the prefix stands; only as .tar.bz2."""
    script = f"#!{PLACEHOLDER}/bin/python\nprint('{PLACEHOLDER}/share/textprefix')\n".encode()
    files = {
        "bin/textprefix": Entry(script, 0o755, placeholder=PLACEHOLDER),
        "share/textprefix/where.txt": Entry(f"prefix={PLACEHOLDER}\n".encode(), placeholder=PLACEHOLDER),
        "share/textprefix/plain.txt": Entry(b"no prefix here\n"),
    }
    return Package("textprefix", "1.0", "h0123456_0", files, depends=("python",), formats=OLD)


def binary_prefix() -> Package:
    """A file that must keep its length, with the prefix in it twice, each time up to a NUL."""
    place = f"{PLACEHOLDER}/share/binprefix".encode()
    data = b"\x7fTOY" + place + b"\0" + b"between\0" + place + b":" + place + b"/more\0" + b"end"
    files = {"share/binprefix/blob.bin": Entry(data, placeholder=PLACEHOLDER, binary=True)}
    return Package("binprefix", "1.0", "h0123456_0", files, formats=BOTH)


def post_link() -> Package:
    """A package whose script writes a file when it is linked."""
    script = b'#!/bin/sh\necho "$PKG_NAME $PKG_VERSION" > "$PREFIX/share/postlink/done.txt"\n'
    files = {
        "bin/.postlink-post-link.sh": Entry(script, 0o755),
        "share/postlink/readme.txt": Entry(b"the script writes done.txt beside this file\n"),
    }
    return Package("postlink", "1.0", "h0123456_0", files, formats=BOTH)


TORCH_VERSIONS = ("2.5.1", "2.7.1")
CUDAS = {"cpu": "", "cuda118": "11.8", "cuda128": "12.8"}
_BUILD_NUMBERS = {"cpu": 0, "cuda118": 200, "cuda128": 300}


def cuda_versions() -> Iterator[Package]:
    """What says which CUDA a build is for, and wants a driver of that major version."""
    for cuda in filter(None, CUDAS.values()):
        constrains = (f"__cuda >={cuda.partition('.')[0]}",)
        yield Package("cuda-version", cuda, "h0123456_3", {}, 3, constrains=constrains, noarch="generic", formats=BOTH)


def torches() -> Iterator[Package]:
    """Toy PyTorch, as conda-forge builds it: for no card, CUDA 11.8 and CUDA 12.8; and its companion."""
    for version in TORCH_VERSIONS:
        yield from (_torch(version, tag, minor) for tag in CUDAS for minor in MINORS)
        for tag in ("cuda118", "cuda128"):
            number = _BUILD_NUMBERS[tag]
            depends = (f"pytorch {version} {tag}*_{number}",)
            yield Package(
                "pytorch-gpu", version, f"{tag}_h0123456_{number}", {}, number,
                depends=depends, noarch="generic", formats=BOTH,
            )  # fmt: skip


def _torch(version: str, tag: str, minor: int) -> Package:
    cuda, number = CUDAS[tag], _BUILD_NUMBERS[tag]
    below = f"lib/python3.{minor}/site-packages"
    files = {
        f"{below}/torch/__init__.py": Entry(f"__version__ = {version!r}\n".encode() + _TORCH),
        f"{below}/torch/version.py": Entry(f"cuda = {cuda or None!r}\n__version__ = {version!r}\n".encode()),
        f"{below}/torch/cuda.py": Entry(_TORCH_CUDA),
    }
    major = cuda.partition(".")[0]
    limits = (f"cuda-version >={cuda},<{int(major) + 1}", "__cuda") if cuda else ()
    depends = (f"python >=3.{minor},<3.{minor + 1}.0a0", f"python_abi 3.{minor}.* *_cp3{minor}", *limits)
    return Package("pytorch", version, f"{tag}_generic_py3{minor}_h0123456_{number}", files, number, depends=depends)


_TORCH = b"""
from . import cuda, version


class Tensor:
    def __init__(self, numbers):
        self.numbers = numbers

    def __add__(self, other):
        return Tensor([mine + theirs for mine, theirs in zip(self.numbers, other.numbers)])

    def sum(self):
        return sum(self.numbers)


def ones(count, device="cpu"):
    if device != "cpu":
        cuda.refuse()
    return Tensor([1.0] * count)
"""

_TORCH_CUDA = b'''"""A stand-in: what it knows of cards it asks nvidia-smi."""
import shutil
import subprocess

from . import version


def _asked(field):
    if version.cuda is None or shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=" + field, "--format=csv,noheader"]
    return subprocess.run(query, stdout=subprocess.PIPE, universal_newlines=True).stdout.split()


def device_count():
    return len(_asked("index"))


def is_available():
    return device_count() > 0


def get_device_capability(device=0):
    major, _, minor = _asked("compute_cap")[device].partition(".")
    return int(major), int(minor)


def get_arch_list():
    arches = {"11.8": ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]}
    arches["12.8"] = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
    return arches.get(version.cuda, [])


def refuse():
    """As PyTorch does where a kernel cannot run: no card, an old driver, or no code for the card."""
    drivers = _asked("driver_version")
    if not drivers:
        raise RuntimeError("Found no NVIDIA driver on your system.")
    if int(drivers[0].partition(".")[0]) < {"11": 450, "12": 525}[version.cuda.partition(".")[0]]:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version %s)." % drivers[0])
    major, minor = get_device_capability()
    codes = [int(arch[3:]) for arch in get_arch_list()]
    if not any(code // 10 == major and code % 10 <= minor for code in codes):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
'''


def packages(wheels: Path, scratch: Path) -> Iterator[Package]:
    """All of them, one after another: the larger ones need not be in memory together."""
    for minor in MINORS:
        found = python(minor, scratch)
        if found is not None:
            yield found
            yield abi(minor)
            yield from (numpy(wheels, version, minor) for version in NUMPY[minor])
    yield from (pure(wheels, name) for name in PURE)
    yield from (greeter(), text_prefix(), binary_prefix(), post_link())
    yield from cuda_versions()
    yield from torches()
