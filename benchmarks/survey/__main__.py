"""`python -m benchmarks.survey [WORDS]`: survey, keep the results below .survey, and write the page and the report.

Words choose a part: `values`, `functions`, `pairs`, `classes`, or names of packages. `sample` takes a few packages.
`--workers=N` says how many processes to keep busy. What an earlier run of the same code has found is not found again:
after an interruption, the same command resumes.
"""

from __future__ import annotations

import ast
import concurrent.futures
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.survey import environments, objects, report, runs
from benchmarks.survey.environments import CACHE, HERE, ROOT, NotInstalled
from benchmarks.survey.functions import VERSIONS
from benchmarks.survey.runs import TOOLS, survey

PARTS = ("values", "functions", "pairs", "classes")
SAMPLE = ("python", "attrs", "numpy", "requests", "click", "networkx", "pydantic")
_FUNCTIONS_OF_EACH = 300
Task = tuple[str, Callable[[Path], None]]


def main(words: Sequence[str]) -> int:
    """Survey what is wanted; return the exit code."""
    numbers = [int(word.partition("=")[2]) for word in words if word.startswith("--workers=")]
    workers = numbers[0] if numbers else os.cpu_count() or 1
    parts = [part for part in PARTS if part in words] or list(PARTS)
    names = [word for word in words if word not in (*PARTS, "sample") and not word.startswith("--")]
    packages = [line.partition("==")[0] for line in environments.surveyed()]
    packages = names or (list(SAMPLE) if "sample" in words else [objects.STANDARD_LIBRARY, *packages])
    began = time.monotonic()
    tasks: dict[Path, Callable[[Path], None]] = {}
    missing: list[str] = []
    for part in parts:
        folder = CACHE / "results" / f"{part}-{_of_code(part)}"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            tasks.update({folder / f"{name}.json": work for name, work in _TASKS[part](packages)})
        except NotInstalled as lacking:  # the other parts may have what they need
            missing.append(f"{part}: {lacking}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(_run, work, path): path.stem for path, work in tasks.items()}
        try:
            for number, done in enumerate(concurrent.futures.as_completed(running), 1):
                if done.exception() is not None:
                    missing.append(f"{running[done]}: {done.exception()}")
                print(f"{number}/{len(tasks)} {running[done]} ({time.monotonic() - began:.0f} s)", flush=True)
        except KeyboardInterrupt:
            runs.stopping.set()
            pool.shutdown(cancel_futures=True)
            kept = sum(path.exists() for path in tasks)
            print(f"Interrupted: {kept} of {len(tasks)} are kept. The same command resumes.")
            return 130
    if not names and "sample" not in words:
        print(report.write(tasks, missing, time.monotonic() - began))
    totals = report.totals(tasks)
    print("\n".join([*missing, *report.lines(totals)]))
    return 0 if report.is_reached(totals) and not missing else 1


def _of_code(part: str) -> str:
    """Return a name for the code that is surveyed and the code that surveys: a change of either makes results old."""
    serialization = ROOT / "clusterfn" / "bridge" / "serialization"
    files = [ROOT / "clusterfn" / name for name in ("packing/payload.py", "calls/outcome.py")]
    files += [*sorted(serialization.glob("*.py")), *sorted(HERE.glob("*.*")), *sorted((HERE / part).glob("*.*"))]
    own = [file for file in files if file.suffix in (".py", ".txt") and file.name not in ("report.py", "__main__.py")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in own)).hexdigest()[:12]


def _run(work: Callable[[Path], None], results: Path) -> None:
    """Do one task; its results are there as a whole or not at all."""
    if not results.exists():
        growing = results.with_suffix(".new")
        work(growing)
        growing.replace(results)


def _python(packages: Sequence[str]) -> str:
    """Return the interpreter of the environment with all packages, or of the small one for a sample."""
    if set(packages) <= set(SAMPLE):
        return environments.environment("sample", environments.pinned(SAMPLE))
    return environments.environment("all", environments.PACKAGES.read_text())


def _values(packages: Sequence[str]) -> Iterator[Task]:
    python = _python(packages)
    for package in packages:
        yield f"values-{package}", lambda results, name=package: survey(name, python, python, (3, 11), results)


def _pairs(packages: Sequence[str]) -> Iterator[Task]:
    folder = HERE / "pairs"
    wanted = [script for script in sorted(folder.glob("*.py")) if script.stem in packages]
    for script in wanted:
        versions = sorted(folder.glob(f"{script.stem}-*.txt"), key=_version)
        for here, there in (versions, versions[::-1]):
            name = f"pairs-{script.stem}-{here.stem.partition('-')[2]}-to-{there.stem.partition('-')[2]}"

            def work(results: Path, here: Path = here, there: Path = there, script: Path = script) -> None:
                pythons = [environments.environment(each.stem, each.read_text()) for each in (here, there)]
                survey(str(script), *pythons, (3, 11), results)

            yield name, work


def _version(requirements: Path) -> list[int]:
    return [int(number) for number in requirements.stem.partition("-")[2].split(".")]


def _classes(packages: Sequence[str]) -> Iterator[Task]:
    """Survey the scripts of classes: within one minor version, and from it to another one in both directions.

    Within one version, all packages are there; between two, those that have wheels for both.
    """
    folder = HERE / "classes"
    for script in sorted(folder.glob("[a-z]*.py")):
        for here, there in ((11, 11), (11, 13), (13, 11), (11, 9), (9, 11)):

            def work(results: Path, here: int = here, there: int = there, script: Path = script) -> None:
                if here == there:
                    pythons = [_python(packages)] * 2
                else:
                    needed = {minor: (folder / f"python-3.{minor}.txt").read_text() for minor in (here, there)}
                    pythons = [environments.environment("classes", needed[each], each) for each in (here, there)]
                if all(_has(python, _needs(script)) for python in pythons):
                    tools = TOOLS if here == there else TOOLS[:1]  # the others send byte code, which crashes there
                    survey(str(script), *pythons, (3, there), results, tools)
                else:
                    results.write_text("[]")

            yield f"classes-{script.stem}-3.{here}-to-3.{there}", work


def _needs(script: Path) -> list[str]:
    """Return the libraries that a script names in `NEEDS`."""
    for node in ast.parse(script.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NEEDS":
            return list(ast.literal_eval(node.value))
    return []


def _has(python: str, libraries: Sequence[str]) -> bool:
    tried = subprocess.run(
        [python, "-c", "\n".join(f"import {name}" for name in libraries)], capture_output=True, check=False
    )
    return tried.returncode == 0


def _functions(packages: Sequence[str]) -> Iterator[Task]:
    pythons = {version: environments.interpreter(version[1]) for version in VERSIONS}
    site = Path(_python(packages)).parents[1] / "lib" / "python3.11" / "site-packages"
    for package in packages:
        for here in VERSIONS[1:]:
            python = pythons[here]
            if python is None or None in pythons.values():
                raise NotInstalled("the part `functions` needs Python 3.9, 3.11 and 3.13")

            def work(results: Path, package: str = package, python: str = python) -> None:
                files = _files(package, site, python)
                _send_and_load(files, python, {version: str(path) for version, path in pythons.items()}, results)

            yield f"functions-{package}-from-{here[0]}.{here[1]}", work


def _files(package: str, site: Path, python: str) -> list[str]:
    if package == objects.STANDARD_LIBRARY:
        lib = next((Path(python).resolve().parents[1] / "lib").glob("python3.*"))
        found = [(path.relative_to(lib), path) for path in sorted(lib.rglob("*.py"))]
        found = [each for each in found if each[0].parts[0] != "site-packages"]
    else:
        distribution = next(iter(metadata.distributions(name=package, path=[str(site)])))
        found = [(Path(str(each)), site / str(each)) for each in distribution.files or [] if each.suffix == ".py"]
    named = [(".".join(name.with_suffix("").parts), path) for name, path in found if path.exists()]
    return [str(path) for name, path in named if not objects.is_skipped(name)]


def _send_and_load(files: Sequence[str], python: str, pythons: dict[tuple[int, int], str], results: Path) -> None:
    bridge, script = str(environments.bridge()), str(HERE / "functions.py")
    every = 1 + sum(Path(file).read_bytes().count(b"def ") for file in files) // _FUNCTIONS_OF_EACH
    files = files[::every]  # whole files: to find a function, all of its file is compiled
    with tempfile.TemporaryDirectory(prefix="survey-") as folder:
        listed = Path(folder) / "files"
        listed.write_text("\n".join(files))
        sent = [python, script, "send", bridge, folder, "1", str(listed)]
        subprocess.run(sent, check=True, capture_output=True, timeout=runs.LIMITS.task_s)
        found = {}
        for version, there in pythons.items():
            name = f"{version[0]}.{version[1]}"
            result = Path(folder) / "result.json"
            argv = [there, script, "load", bridge, f"{folder}/to-{name}", str(result)]
            subprocess.run(argv, check=True, capture_output=True, timeout=runs.LIMITS.task_s)
            found[name] = json.loads(result.read_text())
    results.write_text(json.dumps(found))


_TASKS: dict[str, Callable[[Sequence[str]], Iterator[Task]]] = {
    "values": _values, "functions": _functions, "pairs": _pairs, "classes": _classes,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
