"""Wheels as large as those of PyTorch, with as many files, of which nothing but the size is real.

What is said of their sizes was read from the Python package index: torch 2.8.0 and what it needs for CUDA 12.8, 3.9 GB
in 16 wheels. Their libraries unpack to 1.6 times the archive.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

MB = 10**6
# Name, version, megabytes of the archive; modules and other small files.
TORCH = (
    ("torch", "2.8.0", 888, 2300, 9000),
    ("nvidia_cudnn_cu12", "9.10.2.21", 707, 3, 40),
    ("nvidia_cublas_cu12", "12.8.4.1", 594, 3, 20),
    ("nvidia_nccl_cu12", "2.27.3", 322, 3, 5),
    ("nvidia_cusparse_cu12", "12.5.8.93", 288, 3, 10),
    ("nvidia_cusparselt_cu12", "0.7.1", 287, 3, 5),
    ("nvidia_cusolver_cu12", "11.7.3.90", 268, 3, 10),
    ("nvidia_cufft_cu12", "11.3.3.83", 193, 3, 10),
    ("triton", "3.4.0", 156, 250, 200),
    ("nvidia_cuda_nvrtc_cu12", "12.8.93", 88, 3, 5),
    ("nvidia_curand_cu12", "10.3.9.90", 64, 3, 60),
    ("nvidia_nvjitlink_cu12", "12.8.93", 39, 3, 5),
    ("nvidia_cuda_cupti_cu12", "12.8.90", 10, 3, 100),
    ("nvidia_cufile_cu12", "1.13.1.3", 1, 3, 5),
    ("nvidia_cuda_runtime_cu12", "12.8.90", 1, 3, 120),
    ("nvidia_nvtx_cu12", "12.8.90", 1, 3, 20),
)
_BLOCK = 1 << 20
_UNPACKED = 1.6
_SMALL = 4000  # bytes of a module or a header


@dataclass(frozen=True)
class Wheel:
    """One that was made."""

    name: str
    version: str
    path: Path
    sha256: str

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def made(folder: Path, share: float = 1.0) -> list[Wheel]:
    """All of them.

    Args:
        folder: Where to.
        share: Of the real sizes.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda each: make(folder, *each, share=share), TORCH))


def make(folder: Path, name: str, version: str, megabytes: int, modules: int, others: int, share: float) -> Wheel:
    """One; its libraries are as compressible as real ones, by level 1."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n")
        for place, text in _small(name, modules, others):
            archive.writestr(place, text)
        with archive.open(f"{name}/lib/lib{name}.so", "w", force_zip64=True) as library:
            for block in _blocks(int(megabytes * MB * share * _UNPACKED)):
                library.write(block)
    return Wheel(name, version, path, sha256(path))


def sha256(path: Path) -> str:
    """Of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            found.update(block)
    return found.hexdigest()


def _small(name: str, modules: int, others: int) -> Iterator[tuple[str, str]]:
    line = "def function_{0}_{1}(first, second=None):\n    return (first, second, {0})\n\n\n"
    yield f"{name}/__init__.py", ""
    for number in range(modules):
        yield f"{name}/part{number % 40}/module{number}.py", "".join(line.format(number, each) for each in range(50))
    for number in range(others):
        yield f"{name}/include/part{number % 90}/header{number}.h", f"#define N{number} {number}\n" * (_SMALL // 20)


def _blocks(size: int) -> Iterator[bytes]:
    """Bytes of which five in eight are random and the rest is easily said."""
    random = os.urandom(_BLOCK * 5 // 8)
    block = random + b"\0" * (_BLOCK - len(random))
    for _ in range(size // _BLOCK):
        yield block
    yield block[: size % _BLOCK]
