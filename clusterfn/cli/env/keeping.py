"""`clusterfn env verify`, `remove` and `gc`: environments kept whole, and not kept for ever."""

from __future__ import annotations

import argparse
import json
from typing import Any

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls import dispatch
from clusterfn.cli import screen
from clusterfn.cli.env import showing, trial, which
from clusterfn.config.spec import parse_options
from clusterfn.errors import EnvironmentBuildError
from clusterfn.hosts import environment_builder, environment_facts
from clusterfn.hosts.environment_builder import Told
from clusterfn.hosts.host_state import Session

_TIMEOUT_S = 600.0  # a cold import from a shared file system takes minutes
_SHOWN = 20


def verify(given: argparse.Namespace) -> int:
    """Whether one is whole and works; a line for each thing that was looked at."""
    session = which.session(given.host, "verify")
    built = which.one(given.id, session)
    root = environment_facts.root(session)
    prefix = layout.environment_dir(root, built.id)
    mended = environment_builder.mend(session, root, built.id)
    plan = showing.plan_of(session, prefix)
    found = _imported(session, prefix, plan.get("wanted") or [])
    problems = [*_files(mended), *_modules(found)]
    if problems:
        raise EnvironmentBuildError(
            f"the environment {built.id} does not work", host=session.host.name, stage="environment",
            evidence=problems, hint=f"clusterfn env remove {built.id[:8]} {session.host.name}, and build it anew",
        )  # fmt: skip
    if given.gpus:
        _on_a_card(session, prefix, given.gpus)
    return 0


def _files(mended: Told) -> list[str]:
    """What cannot be brought back."""
    print(f"files     {mended['files']} are there, {mended['relinked']} of them were missing and are back")
    lost = mended["lost"]
    return [f"{len(lost)} files are lost: {', '.join(lost[:_SHOWN])}"] if lost else []


def _imported(session: Session, prefix: str, wanted: list[str]) -> dict[str, Any]:
    """What its own Python imports of what was asked for."""
    argv = [f"{prefix}/bin/python", "-I", "-c", trial.IMPORTS, *wanted]
    unset = (*session.scheduler.unset, "LD_LIBRARY_PATH", "PYTHON")
    answer = session.connection.run(argv, unset=unset, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
    lines = (answer.out + answer.err).decode("utf-8", "replace").splitlines()
    told = [line[len(trial.MARK) :] for line in lines if line.startswith(trial.MARK)]
    if not told:
        raise EnvironmentBuildError(
            f"{prefix}/bin/python does not say what it imports", host=session.host.name, stage="environment",
            evidence=lines[-_SHOWN:], hint="clusterfn env remove it, and build it anew",
        )  # fmt: skip
    return dict(json.loads(told[-1]))


def _modules(found: dict[str, Any]) -> list[str]:
    modules = ", ".join(found["imported"]) or "nothing else, as none of its packages was asked for by name"
    print(in_one_line(f"imports   Python {found['python']}, {modules}"))
    if "cuda" in found:
        print(in_one_line(f"cuda      {found['cuda'] or 'none'}, as torch.version.cuda says"))
    return [f"{name} cannot be imported: {why}" for name, why in found["failed"].items()]


def _on_a_card(session: Session, prefix: str, gpus: int) -> None:
    """By an ordinary job, because only such a one is given cards; what goes wrong there is raised here."""
    where = {"host": session.host.name, "environment": f"prefix:{prefix}", "gpus": gpus, "name": "verify"}
    told = dispatch.call(trial.kernel(), (), {}, parse_options(where))
    node, torch, cuda, available, _, capability, total = told or ("", "", "", False, 0, "", 0.0)
    if not available:
        raise EnvironmentBuildError(
            f"PyTorch {torch} sees no GPU on {node}" if told else f"{prefix} has no PyTorch", host=session.host.name,
            stage="environment", hint="look at nvidia-smi in a job of that host",
        )  # fmt: skip
    if total != trial.TOTAL:
        raise EnvironmentBuildError(
            f"a kernel of PyTorch {torch} computes {total} instead of {trial.TOTAL} on {node}", host=session.host.name,
            stage="environment", hint="ask the administrator to look at the card",
        )  # fmt: skip
    ran = f"a kernel of PyTorch {torch} for CUDA {cuda} ran, compute capability {capability}"
    print(in_one_line(f"card      {node}: {ran}"))


def remove(given: argparse.Namespace) -> int:
    """Remove one that no job uses."""
    session = which.session(given.host, "remove")
    built = which.one(given.id, session)
    told = environment_builder.remove(session, environment_facts.root(session), built.id)
    if not told["removed"]:
        raise EnvironmentBuildError(
            f"{built.id} was not removed: {told['why']}", host=session.host.name, stage="environment",
            evidence=[f"used by job {job}" for job in told.get("used_by") or ()],
            hint="wait for these jobs, or end them: clusterfn cancel ID",
        )  # fmt: skip
    print(in_one_line(f"removed {built.id} ({built.about}); {_freed(told)}"))
    return 0


def collect(given: argparse.Namespace) -> int:
    """Remove what was not used for long; what is held, and by whom, is said."""
    session = which.session(given.host, "gc")
    root = environment_facts.root(session)
    there = {each.id: each for each in environment_builder.environments(session, root)}
    told = environment_builder.collect(session, root, given.days, given.keep, dry=given.dry_run)
    done = "would remove" if given.dry_run else "removed"
    for env_id in told["removed"]:
        print(in_one_line(f"{done} {env_id} ({there[env_id].about if env_id in there else 'built meanwhile'})"))
    for each in told["kept"]:
        which.say(f"{each['id']} was not removed: {each['why']} {' '.join(each['used_by'])}".rstrip())
    if given.dry_run:
        print(f"{len(told['removed'])} of {len(there)} environments would go, about {screen.size(told['freed'])}")
        return 0
    print(f"{len(told['removed'])} environments removed, {len(there) - len(told['removed'])} kept; {_freed(told)}")
    return 0


def _freed(told: Told) -> str:
    return f"{screen.size(told['freed'] or 0)} freed, with {told['packages']} packages that no other environment has"
