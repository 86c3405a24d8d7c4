"""Build a wheel from a source distribution, once for all environments, with what the lock says builds it.

pip calls the build backend (PEP 517, or setup.py), without network, in an environment of its own: the Python and the
conda packages of the environment that is being made, and the wheels of the lock that build. The compiler, CUDA and
headers are the host's, where conda brings none, and those of its `modules:`.
"""

import json
import os
import re
import shutil
from typing import Callable

from ..layout import PACKAGES, build_dir
from ..supervisor import publish
from ..supervisor.text import last_lines
from . import programs
from .link import Linker
from .package_formats import layout_of_plan
from .plan import WHEEL, BuildPlan, PlannedPackage
from .progress import ROOM, BuildFailed

_LINES = 15
_LOOKED_AT = 60
_SET = ("PATH", "CONDA_PREFIX", "PYTHONNOUSERSITE")
_NOT_OF_BACKEND = re.compile(
    r"\s*(note: |hint: See above|\[end of output\]|×|│|╰─>|error: subprocess-exited|ERROR: Failed|Failed to build"
    r"|full command: |cwd: |error: metadata-generation-failed|error: failed-wheel-build)"
    r"|Processing |Building wheels? for|\s*(Preparing|Getting|Building) .*: (started|finished)|\s*$"
)
# A Python that was compiled elsewhere names the compiler of that machine, which this one may not have.
_COMPILERS = """
import json, os, shutil, sysconfig
found = {}
for name, others in (("CC", "cc gcc clang"), ("CXX", "c++ g++ clang++"), ("AR", "ar")):
    named = (os.environ.get(name) or sysconfig.get_config_var(name) or "").split()
    there = [program for program in others.split() if shutil.which(program)]
    if there and not (named and shutil.which(named[0])):
        found[name] = there[0]
print("\\n" + json.dumps(found))
"""
# Modules bring programs and libraries. A Python among them counts for nothing: neither its packages nor pip's settings.
_BEHIND_MODULES = """
import json, os, sys
for name in list(os.environ):
    if name.startswith(("PYTHON", "PIP_")) or name == "VIRTUAL_ENV":
        del os.environ[name]
os.environ.update(json.loads(sys.argv[1]))
os.environ["PATH"] = os.path.dirname(sys.argv[2]) + os.pathsep + os.environ.get("PATH", "")
os.execv(sys.argv[2], sys.argv[2:])
"""
_PIP_OPTIONS = (
    "--no-deps",
    "--no-index",
    "--no-build-isolation",
    "--no-cache-dir",
    "--disable-pip-version-check",
    "--no-input",
)
_BY_HAND = "build its wheel where it works, `pip wheel --no-deps %s -w wheels`, and add the line `--find-links wheels`"
_COMPILER = (
    "install a C and C++ compiler on the host, name its module (modules: [gcc]), or add conda's (c-compiler, "
    "cxx-compiler) to an environment.yml"
)
# What the last lines of a failed build say, and what to do.
_CAUSES = (
    (r"No space left on device|[Dd]isk quota exceeded", ROOM),
    (r"fatal error: (?:pyconfig|Python)\.h", "the host's Python has no headers: install its -dev or -devel package, or "
     "take Python from elsewhere (env_python: standalone)"),
    (r"fatal error: (\S+\.h\w*): No such file", "the header {0} is missing: install the library that has it with its "
     "headers, name its module (modules:), or add conda's package of it to an environment.yml"),
    (r"nvcc|CUDA_HOME|CUDAToolkit|CUDA_TOOLKIT", "it needs CUDA's compiler: name its module (modules: [cuda]), and "
     "build on a node if only nodes have it (build_on: node)"),
    (r"cargo|rustc|Rust toolchain", "it needs Rust: install it on the host, or name its module (modules: [rust])"),
    (r"[Uu]nable to find a compiler|unable to execute '?\S*(?:cc|\+\+|clang)\b|CMAKE_C(?:XX)?_COMPILER|"
     r"command '?\S*(?:cc|\+\+|clang)'? failed: No such file|(?:cc|\+\+|clang): (?:command )?not found|"
     r"Unknown compiler", _COMPILER),
    (r"(cmake|ninja|make|autoreconf|swig|gfortran|pkg-config|git): (?:command )?not found|"
     r"sh: (?:line )?\d+: (\w[\w+-]*): (?:command )?not found|No such file or directory: '(\w[\w+-]*)'|"
     r"(?:command|unable to execute) '?(\w[\w+-]*)'?(?: failed)?: No such file",
     "it needs {0}: install it on the host, or name its module (modules:)"),
    (r"No module named '?([\w.]+)", "its setup.py needs {0}, and does not say so: " + _BY_HAND),
)  # fmt: skip


def build_wheel(
    plan: "BuildPlan", package: "PlannedPackage", sdist: str, token: str, unpack: "Callable[[str], None]"
) -> None:
    """Build a wheel from an archive, and give its path to `unpack`.

    Args:
        token: Of the builder: a folder that a dead one has left is removed by its name.

    Raises:
        PackageDamaged: A package of the environment, or one that builds, has lost a file.
        BuildFailed: The build failed.
    """
    folder = os.path.join(plan.root, PACKAGES, ".build-%s-%s" % (package.sha256[:16], token))
    # The wheel is built in an environment of its own.
    prefix, wheels, temporary = [os.path.join(folder, name) for name in ("env", "wheels", "tmp")]

    def run(words: "list[str]", variables: "dict[str, str]") -> bytes:
        """Run Python there, where the host's modules are loaded; return what it printed."""
        argv = [os.path.join(prefix, "bin", "python")] + words
        if plan.setup:
            kept = {"CONDA_PREFIX": prefix, "PYTHONNOUSERSITE": "1", "PIP_CONFIG_FILE": os.devnull}
            after = [argv[0], "-I", "-c", _BEHIND_MODULES, json.dumps(kept)]
            argv = ["/bin/sh", "-c", plan.setup + '\nexec "$@"', "sh"] + after + argv
        return programs.run_in_environment(argv, prefix, variables, plan.timeout_s)

    shutil.rmtree(folder, ignore_errors=True)
    try:
        for new_folder in (wheels, temporary):
            os.makedirs(new_folder)
        names = {required.name for required in package.requires}
        others = [other for other in plan.packages if other.kind != WHEEL and other.name not in names]
        layout = layout_of_plan(plan._replace(packages=others + list(package.requires)), prefix)
        Linker(prefix, prefix).make(sorted(layout.targets.values()))
        # pip reads the name and the version in the file's name, so the link has it.
        path = os.path.join(folder, os.path.basename(sdist))
        os.symlink(sdist, path)
        words = ["-m", "pip", "wheel", *_PIP_OPTIONS, "--verbose", "--wheel-dir", wheels, path]
        try:
            # conda's compilers count, or those that this machine has.
            said = programs.find_activation_variables(prefix, plan.timeout_s).items()
            variables = {name: value for name, value in said if name not in _SET}
            # 1980 is the first year that a zip can hold.
            variables.setdefault("SOURCE_DATE_EPOCH", "315532800")
            # A commit comes without its repository, in which these look for the version.
            variables.update(SETUPTOOLS_SCM_PRETEND_VERSION=package.version, PBR_VERSION=package.version)
            # Programs in /tmp may not be allowed to run (noexec), so the build has a folder of its own.
            variables.update(TMPDIR=temporary, PIP_CONFIG_FILE=os.devnull)
            lines = run(["-I", "-c", _COMPILERS], variables).decode("utf-8", "replace").strip().splitlines()
            run(words, dict(variables, **json.loads(lines[-1])))
        except programs.ProgramFailed as error:
            raise _failed(plan, package, str(error), error.output) from error
        made = [name for name in os.listdir(wheels) if name.endswith(WHEEL)]
        if len(made) != 1:
            raise _failed(plan, package, "it made %d wheels" % len(made), b"")
        unpack(os.path.join(wheels, made[0]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _failed(plan: "BuildPlan", package: "PlannedPackage", how: str, output: bytes) -> BuildFailed:
    log = os.path.join(build_dir(plan.root, plan.id), "log-%s" % package.name)
    publish.replace(log, output, mode=0o666)
    evidence = [line for line in last_lines(output, _LOOKED_AT) if not _NOT_OF_BACKEND.match(line)][-_LINES:]
    message = "%s has no wheel, and building it on %s failed: %s" % (package.label, os.uname()[1], how)
    hint = advice(evidence, package)
    return BuildFailed(message, stage="build", evidence=evidence + ["all of it: %s" % log], hint=hint)


def advice(evidence: "list[str]", package: "PlannedPackage") -> str:
    """Say what to do about a build that failed with these lines."""
    text = "\n".join(evidence)
    by_hand = "%s==%s" % (package.name, package.version)
    for pattern, what in _CAUSES:
        match = re.search(pattern, text)
        if match:
            named = what.replace("{0}", next((group for group in match.groups() if group), ""))
            return named % by_hand if "%s" in named else named
    return "read the log; or " + _BY_HAND % by_hand
