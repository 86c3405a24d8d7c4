"""What a call needs beyond the host: modules, an environment of the caller's Python, and one function that returns."""

from __future__ import annotations

import secrets

from clusterfn.bridge.supervisor.text import how_to_correct
from clusterfn.cli.check import probe_job
from clusterfn.cli.check.step import CheckState, StepFailed, StepSkipped, StepWarning
from clusterfn.cli.env import manage
from clusterfn.config.options import did_you_mean, parse_options
from clusterfn.hosts.environment_choice import EnvironmentRequest
from clusterfn.hosts.host_state import CALLER
from clusterfn.scheduler import job_script

_LAST_LINES = 5


def modules(found: CheckState) -> str:
    wanted = found.host.modules
    if not (wanted or found.host.setup or found.host.prolog):
        raise StepSkipped("clusterfn.yml names no modules and no lines for the host's shell")
    mark = f"clusterfn-{secrets.token_hex(8)}"
    answer = found.run("/bin/sh", "-c", job_script.modules_check(found.host, mark))
    before, _, after = answer.out.decode("utf-8", "replace").partition(f"\n{mark} ")
    head, *like = after.splitlines() or [""]
    status, _, stage = head.partition(" ")
    said = [*answer.err.decode("utf-8", "replace").splitlines(), *before.splitlines()][-_LAST_LINES:]
    if stage.startswith("module:"):
        raise _no_module(found, stage[len("module:") :], like, said)
    if stage != "loaded":
        code, stage = status or str(answer.rc), stage or "setup"
        line = f" `{like[0]}`" if like and like[0] else ""
        hint = how_to_correct("\n".join(like), code, f"{stage}: of {found.place}")
        raise StepFailed(f"{stage}: fails with exit code {code} at the line{line}", hint, said)
    return f"{', '.join(wanted)} can be loaded" if wanted else "the lines of setup: and prolog: succeed"


def _no_module(found: CheckState, name: str, like: list[str], said: list[str]) -> StepFailed:
    there = [line.strip().removesuffix("(default)") for line in like if line.startswith(name.split("/")[0])]
    known = f"; there are {', '.join(there)}" if there else "; `module avail` there shows what it has"
    near = did_you_mean(name, there)
    return StepFailed(f"the module {name} cannot be loaded{near}", f"correct modules: of {found.place}{known}", said)


def environment(found: CheckState) -> str:
    interpreter = found.session.environment(EnvironmentRequest(found.environment, gpus=found.gpus)).interpreter
    here = "as here" if interpreter.version == CALLER else f"here {CALLER[0]}.{CALLER[1]}: code travels as text"
    return f"{interpreter.path} (Python {interpreter.version[0]}.{interpreter.version[1]}, {here})"


def function(found: CheckState) -> str:
    if found.no_job:
        raise StepSkipped("--no-job")
    try:
        returned = probe_job.run_probe(found.host, found.environment, found.session, found.progress, found.timeout_s)
    except probe_job.StillWaiting as waiting:
        raise StepSkipped(f"still waiting ({waiting}); everything before it works") from waiting
    except probe_job.TooLate as late:
        hint = "wait longer with --timeout, or leave it out with --no-job; the job was stopped"
        raise StepFailed(str(late), hint) from late
    _check_namespace(found, returned.net_ns)
    where = f"{returned.node}, Python {returned.python}, process {returned.pid}"
    return f"returned from {where}, after {returned.seconds:.2f} s"


def pytorch(found: CheckState) -> str:
    """One calculation on the GPUs of a job, in whatever kind of environment."""
    if found.no_job:
        raise StepSkipped("--no-job")
    if not found.gpus:
        raise StepSkipped("a calculation on a GPU is tried with --gpus 1")
    cards = len(found.site.cards.names) if found.site.cards and not found.has_nodes else 0
    if 0 < cards < found.gpus:
        has = f"{cards} GPU{'' if cards == 1 else 's'}"
        raise StepFailed(f"{found.name} has {has}, and --gpus asks for {found.gpus}", f"write --gpus {cards}, or less")
    wanted = {"host": found.host.name, "environment": found.environment, "gpus": found.gpus, "name": "check"}
    options = parse_options(wanted)
    try:
        told = probe_job.send_probe(
            manage.gpu_kernel(), options, found.host, found.session, found.progress, found.timeout_s
        )
    except probe_job.StillWaiting as waiting:
        raise StepSkipped(f"still waiting for a GPU ({waiting})") from waiting
    except probe_job.TooLate as late:
        raise StepFailed(str(late), "wait longer with --timeout; the job was stopped") from late
    if told is None:
        raise StepFailed("the environment has no PyTorch", "name one that has it by --environment, or leave --gpus out")
    node, version, cuda, available, count, capability, total = told
    build = f"PyTorch {version} for CUDA {cuda}"
    if not available or count < found.gpus:
        seen = f"sees {count} of {found.gpus} GPUs" if available else "sees no GPU (torch.cuda.is_available() is False)"
        raise StepFailed(f"{build} {seen} on {node}", f"look at nvidia-smi in a job of {found.name}")
    if total != manage.TOTAL:
        raise StepFailed(f"{build} computes {total} instead of {manage.TOTAL} on {node}", "ask the administrator")
    return f"{build} calculated on {node}: {count} GPUs, compute capability {capability}"


def _check_namespace(found: CheckState, net_ns: str) -> None:
    """Jobs of a machine without a queue keep cards from one another by sockets, which do not reach so far."""
    ours = found.session.connection.facts.net_ns
    if not found.has_nodes and found.host.lease == "socket" and net_ns and ours and net_ns != ours:
        message = f"returned, but jobs there run in a network namespace of their own ({net_ns}, the agent in {ours})"
        raise StepWarning(f"{message}: two could take one card", f"write `lease: file` for {found.place}")
