"""`clusterfn env list`, `show`, `remove`, `gc` and `verify`: the environments on a host; `build` locks and builds them.

Data goes to stdout, sentences and progress to stderr. `verify` says whether an environment is whole, and works. It runs
a program under the environment's own Python, from 3.9 on. The program imports what was asked for.
"""

from __future__ import annotations

import argparse
import json
import posixpath
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import counted, format_duration, format_size, in_one_line
from clusterfn.cli import target
from clusterfn.config.environment_kinds import names_a_file
from clusterfn.config.host_text import reading
from clusterfn.display import console, live
from clusterfn.environment import resolve
from clusterfn.errors import ClusterfnError, ConfigError, EnvironmentBuildError
from clusterfn.hosts import environment_builder, environment_choice, remote_files
from clusterfn.hosts.environment_builder import BuildProgress, Built
from clusterfn.hosts.host_state import HostState

# With fewer digits, a typing error could easily name another environment.
_LEAST_DIGITS = 4


def _environment_and_host(args: argparse.Namespace, command: str) -> tuple[Built, HostState]:
    """Find the one environment of a command, on the host named with it; raise ConfigError if it is none or several."""
    word, host = target.one_and_host(args.words, "ID", f"env {command}")
    host_state = target.host_state(host, f"env {command}")
    return _find_environment(word, host_state), host_state


def _find_environment(word: str, host: HostState) -> Built:
    """Find an environment on the host by its id, the beginning of its id, or its file.

    Raises:
        ConfigError: There is none, or there are several.
        LockError: The lock next to the file cannot be read.
    """
    root = environment_choice.environments_root(host)
    begin = word.lower()
    if names_a_file(word):
        # The lock must exist already: this command solves no environment.
        spec = resolve.read_specification(word, ())
        if why := environment_choice.explain_stale_lock(host, spec, 0):
            hint = f"clusterfn env lock {shlex.quote(word)} {host.settings.name}"
            raise ConfigError(f"{word} is not locked: {why}", hint=hint)
        begin = environment_choice.lock_environment(host, spec, 0, console.tell).id
    environments = environment_builder.list_environments(host, root)
    exact = [environment for environment in environments if environment.id == begin]
    matches = exact or [environment for environment in environments if environment.id.startswith(begin)]
    if len(matches) == 1 and len(begin) >= _LEAST_DIGITS:
        return matches[0]
    hint = f"clusterfn env list {host.settings.name}"
    if matches:
        ids = [environment.id for environment in matches]
        raise ConfigError(f"{word!r} matches several environments", evidence=ids, hint=hint)
    raise ConfigError(f"there is no environment {word!r} on {host.settings.name}", hint=hint)


_LIST_HEAD = ("ID", "MADE FROM", "PYTHON", "CUDA", "SIZE", "FILES", "AGE", "USED", "USED BY")
_DIGITS = 8
_ABOUT = 40
_SHOWN_JOBS = 3


def list_environments(args: argparse.Namespace) -> int:
    """Print the environments of a host, the one used last first."""
    host = target.host_state(args.host, "env list")
    environments = environment_builder.list_environments(host, environment_choice.environments_root(host))
    if args.json:
        print(console.as_json([asdict(environment) for environment in environments]))
    elif environments:
        print(live.table(_LIST_HEAD, _rows(environments)))
        total = format_size(sum(environment.size for environment in environments))
        count = counted(len(environments), "environment")
        console.tell(f"{count}, {total}; files that several environments share are counted in each")
    else:
        console.tell(f"no environments on {host.settings.name}")
    return 0


def _rows(environments: Sequence[Built]) -> Iterator[list[str]]:
    now = time.time()
    for environment in environments:
        about = environment.about if len(environment.about) <= _ABOUT else environment.about[: _ABOUT - 1] + "…"
        users = " ".join(job[:_DIGITS] for job in environment.used_by[:_SHOWN_JOBS])
        users += f" and {len(environment.used_by) - _SHOWN_JOBS} more" if len(environment.used_by) > _SHOWN_JOBS else ""
        ages = [format_duration(now - environment.built), format_duration(now - environment.used)]
        sizes = [format_size(environment.size), str(environment.files)]
        yield [environment.id[:_DIGITS], about, environment.python, environment.cuda or "-", *sizes, *ages, users]


def show_environment(args: argparse.Namespace) -> int:
    """Print all that is known of an environment."""
    built, host = _environment_and_host(args, "show")
    prefix = layout.environment_dir(environment_choice.environments_root(host), built.id)
    record, plan = read_ready(host, prefix), _read_plan(host, prefix)
    if args.json:
        print(console.as_json({**asdict(built), "prefix": prefix, "ready": record, "plan": plan}))
        return 0
    facts = [(name, in_one_line(value)) for name, value in _facts(built, prefix, record, plan) if value]
    print("\n".join(f"{name:<12}{value}" for name, value in facts))
    print(live.table(("PACKAGE", "VERSION", "BUILD", "BY"), sorted(record["packages"])))
    return 0


def _facts(built: Built, prefix: str, record: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    now = time.time()
    yield "id", built.id
    yield "made from", built.about
    yield "asked for", " ".join(plan.get("wanted") or ())
    yield "folder", prefix
    base = record.get("base")
    yield "python", f"{built.python}, the host's own: {base['path']}" if base else built.python
    yield "CUDA", built.cuda or ("none" if built.cuda == "" else "")
    yield "because", plan.get("why") or ""
    yield "locked for", _virtual(plan.get("virtual") or {})
    fetched = f"{format_size(record['fetched'])} fetched by the host"
    yield "size", f"{format_size(built.size)} in {built.files} files; {fetched}"
    yield "built", f"{format_duration(now - built.built)} ago on {record['host']}, in {seconds(record['seconds'])}"
    yield "used", f"{format_duration(now - built.used)} ago"
    yield "used by", " ".join(built.used_by)


def seconds(stages: Mapping[str, Any]) -> str:
    """Say how long each stage took, and all of them together.

    Example:
        >>> seconds({"packages": 4.0, "link": 0.5})
        '4.5 s (packages 4.0, link 0.5)'
    """
    times = ", ".join(f"{name} {value:.1f}" for name, value in stages.items())
    return f"{sum(stages.values()):.1f} s ({times})"


def _virtual(packages: Mapping[str, str]) -> str:
    """Say what was assumed of the host.

    Example:
        >>> _virtual({"__glibc": "2.28", "__unix": "0"})
        'glibc 2.28'
    """
    return ", ".join(f"{name.lstrip('_')} {value}" for name, value in packages.items() if value != "0")


def read_ready(host: HostState, prefix: str) -> dict[str, Any]:
    """Read what the builder wrote at the end of the build."""
    return _read(host, posixpath.join(prefix, layout.READY))


def _read_plan(host: HostState, prefix: str) -> dict[str, Any]:
    """Read the plan that the builder was given."""
    return _read(host, posixpath.join(prefix, layout.ABOUT, layout.PLAN))


def _read(host: HostState, path: str) -> dict[str, Any]:
    text = remote_files.read_text(host.connection, path)
    if not text:
        hint = "run clusterfn env verify, which restores missing files"
        raise ClusterfnError(f"{path} no longer exists", host=host.settings.name, hint=hint)
    with reading(host.settings.name, path):
        return dict(json.loads(text))


def remove_environment(args: argparse.Namespace) -> int:
    """Remove an environment that no job uses."""
    built, host = _environment_and_host(args, "remove")
    outcome = environment_builder.remove_environment(host, environment_choice.environments_root(host), built.id)
    if not outcome["removed"]:
        message = f"{built.id} was not removed: {outcome['why']}"
        users = [f"used by job {job}" for job in outcome.get("used_by") or ()]
        hint = "wait for these jobs, or end them: clusterfn cancel ID"
        name = host.settings.name
        raise EnvironmentBuildError(message, host=name, stage="environment", evidence=users, hint=hint)
    if args.json:
        print(console.as_json({"removed": [built.id], "freed": outcome["freed"] or 0, "packages": outcome["packages"]}))
    else:
        print(in_one_line(f"removed {built.id} ({built.about}); {_freed(outcome)}"))
    return 0


def remove_unused(args: argparse.Namespace) -> int:
    """Remove environments that were not used for long; say which jobs hold the others."""
    host = target.host_state(args.host, "env gc")
    root = environment_choice.environments_root(host)
    environments = {environment.id: environment for environment in environment_builder.list_environments(host, root)}
    outcome = environment_builder.remove_unused_environments(host, root, args.days, args.keep, dry=args.dry_run)
    if args.json:
        print(console.as_json({"removed": outcome["removed"], "kept": outcome["kept"], "freed": outcome["freed"] or 0}))
        return 0
    done = "would remove" if args.dry_run else "removed"
    for env_id in outcome["removed"]:
        about = environments[env_id].about if env_id in environments else "built meanwhile"
        print(in_one_line(f"{done} {env_id} ({about})"))
    for kept in outcome["kept"]:
        console.tell(f"{kept['id']} was not removed: {kept['why']} {' '.join(kept['used_by'])}".rstrip())
    if args.dry_run:
        of = counted(len(environments), "environment")
        print(f"{len(outcome['removed'])} of {of} would go, about {format_size(outcome['freed'])}")
        return 0
    removed = len(outcome["removed"])
    print(f"{counted(removed, 'environment')} removed, {len(environments) - removed} kept; {_freed(outcome)}")
    return 0


def _freed(outcome: BuildProgress) -> str:
    packages = counted(outcome["packages"], "package")
    return f"{format_size(outcome['freed'] or 0)} freed, with {packages} that no other environment has"


# The first import from a shared file system may take minutes.
_IMPORT_TIMEOUT_S = 600.0
_MOST_LINES = 20
_REPORT_PREFIX = "clusterfn imports "

# The program finds the distribution of a package by its name, and the
# distribution lists its modules. conda calls torch "pytorch".
_IMPORT_PROGRAM = r"""
import importlib, importlib.metadata as metadata, importlib.util, json, sys
NAMES = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cuda": "torch"}

def modules(name):
    name = NAMES.get(name, name)
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        plain = name.replace("-", "_")
        return [plain] if plain.isidentifier() and importlib.util.find_spec(plain) else []
    listed = (distribution.read_text("top_level.txt") or "").split()
    if not listed:
        files = [path for path in distribution.files or () if path.suffix in (".py", ".so")]
        places = [path.parts for path in files if len(path.parts) < 3]
        listed = [parts[0].partition(".")[0] for parts in places if parts[-1] in ("__init__.py", parts[0])]
    return sorted({each for each in listed if each.isidentifier() and not each.startswith("_")})

report = {"python": "%d.%d.%d" % sys.version_info[:3], "imported": [], "failed": {}}
for name in [each for package in sys.argv[1:] for each in modules(package) if package not in ("python", "pip")]:
    try:
        module = importlib.import_module(name)
    # Importing runs the code of a package, which may raise anything.
    except BaseException as error:
        report["failed"][name] = "%s: %s" % (type(error).__name__, error)
        continue
    version = getattr(module, "__version__", None)
    report["imported"].append("%s %s" % (name, version) if version else name)
    if name == "torch":
        report["cuda"] = module.version.cuda
print("\n" + PREFIX + json.dumps(report), flush=True)
""".replace("PREFIX", repr(_REPORT_PREFIX))


def verify_environment(args: argparse.Namespace) -> int:
    """Check that an environment is whole and works; print a line for each check."""
    built, host = _environment_and_host(args, "verify")
    root = environment_choice.environments_root(host)
    prefix = layout.environment_dir(root, built.id)
    mended = environment_builder.repair_environment(host, root, built.id)
    plan = _read_plan(host, prefix)
    report = _imported(host, prefix, plan.get("wanted") or [])
    lines = [f"files     {mended['files']} checked, {mended['relinked']} restored", *_modules(report)]
    if not args.json:
        print("\n".join(in_one_line(line) for line in lines))
    lost = mended["lost"]
    problems = [f"{counted(len(lost), 'lost file')}: {', '.join(lost[:_MOST_LINES])}"] if lost else []
    problems += [*(f"{name} cannot be imported: {why}" for name, why in report["failed"].items())]
    if problems:
        name = host.settings.name
        message = f"the environment {built.id} does not work"
        hint = f"clusterfn env remove {built.id[:8]} {name}, and build it again"
        raise EnvironmentBuildError(message, host=name, stage="environment", evidence=problems, hint=hint)
    if args.json:
        files = {"files": mended["files"], "restored": mended["relinked"]}
        print(console.as_json({"id": built.id, **files, **report}))
    return 0


def _imported(host: HostState, prefix: str, packages: list[str]) -> dict[str, Any]:
    """Import in its own Python what was asked for; return what came of it."""
    argv = [f"{prefix}/bin/python", "-I", "-c", _IMPORT_PROGRAM, *packages]
    # Test the environment alone: variables of the login must not add libraries or modules to it.
    unset = (*host.scheduler.unset, "LD_LIBRARY_PATH", "PYTHON")
    answer = host.connection.run(argv, unset=unset, timeout_s=_IMPORT_TIMEOUT_S).result(_IMPORT_TIMEOUT_S)
    lines = (answer.out + answer.err).decode("utf-8", "replace").splitlines()
    reports = [line[len(_REPORT_PREFIX) :] for line in lines if line.startswith(_REPORT_PREFIX)]
    if not reports:
        message = f"{prefix}/bin/python does not report what it imports"
        hint = "remove it with clusterfn env remove, and build it again"
        last = lines[-_MOST_LINES:]
        name = host.settings.name
        raise EnvironmentBuildError(message, host=name, stage="environment", evidence=last, hint=hint)
    with reading(host.settings.name, "what its environment imports"):
        return dict(json.loads(reports[-1]))


def _modules(report: dict[str, Any]) -> list[str]:
    modules = ", ".join(report["imported"]) or "nothing else, because no package was asked for by name"
    cuda = [f"cuda      {report['cuda'] or 'none'}, according to torch.version.cuda"] if "cuda" in report else []
    return [f"imports   Python {report['python']}, {modules}", *cuda]
