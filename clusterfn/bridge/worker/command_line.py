"""What a command needs: values in their places, an interpreter, options of a launcher, and who is warned.

Launchers of several processes learn about nodes and GPUs: torchrun from variables, accelerate from its command line.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..layout import INDEX_VARIABLE, TAG, THREADS
from ..supervisor import process_tree
from ..supervisor.process_tree import user_name
from ..supervisor.rendezvous import free_port

_SHELLS = ("bash", "sh", "ash", "dash", "ksh", "zsh")
# `{{lr}}` is the text `{lr}`, and `${lr}` is the shell's own.
PLACE = re.compile(r"(?<!\$)(?:\{(\{[A-Za-z_]\w*\})\}|\{([A-Za-z_]\w*)\})", re.ASCII)
# These give their words to a shell, perhaps on another machine.
_GIVE_CODE = ("ssh", "watch", "parallel", "tmux", "su")
_HAS_CODE = re.compile(r"[-+]\w*c\w*")
# No shell sees anything but text in such a value, wherever it is in a line.
PLAIN = re.compile(r"[\w@%+=:,./-]+")
WRITE_PLAIN = "use letters, digits and @%+=:,./- there, or pass the value as a word to a script"
_LONGEST_FIRST_LINE = 4096
# These are the options of accelerate that choose how it starts processes.
_KINDS = ("multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "config_file")


def places_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the names of all places, each once."""
    return tuple(dict.fromkeys(found[2] for text in texts for found in PLACE.finditer(text) if found[2]))


class NotPlain(Exception):
    """A value would become a part of code for a shell; the text says which."""


def fill(text: str, values: Mapping[str, Any], is_code: bool = False) -> str:
    """Put values into their places, and `{name}` for `{{name}}`: one step, so that no value is searched for places.

    Args:
        is_code: Whether a shell reads the text as code.

    Raises:
        NotPlain: A value would not be one text there.
    """

    def one(place: re.Match[str]) -> str:
        if place[1]:
            return place[1] if place[1][1:-1] in values else place[0]
        if place[2] not in values:
            return place[0]
        value = str(values[place[2]])
        if is_code and not PLAIN.fullmatch(value):
            raise NotPlain("a shell would not read the value %r of {%s} as one word" % (value[:60], place[2]))
        return value

    return PLACE.sub(one, text)


def fill_words(words: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Put values into words: any text, but a plain one where a shell reads code, as after `bash -c`."""
    is_code = False
    has_shell = False
    filled = []
    for word in words:
        filled.append(fill(word, values, is_code))
        name = os.path.basename(filled[-1])
        has_shell = has_shell or name in _SHELLS
        is_code = is_code or name in _GIVE_CODE or (has_shell and _HAS_CODE.fullmatch(name) is not None)
    return filled


def fill_command(command: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command, or its one line for a shell, with the values in their places; raise as `fill`."""
    if command["line"]:
        return [fill(command["line"], values, is_code=True)]
    return fill_words(command["words"], values)


def interpreter_of(script: str) -> list[str]:
    """Return what runs a script: nothing if the kernel does, else what its first line names, or bash.

    The mode of the script stays: with `cwd=` it is a file of the user's own.
    """
    with open(script, "rb") as file:
        begins = file.readline(_LONGEST_FIRST_LINE)
    if begins.startswith(b"#!"):
        return [] if os.access(script, os.X_OK) else os.fsdecode(begins[2:]).strip().split(None, 1)
    return [] if begins.startswith(b"\x7fELF") else [shutil.which("bash") or "/bin/sh"]


def to_warn(pid: int, number: int) -> list[int]:
    """Return whom a signal to a command is meant for: in place of a shell, the programs that it runs.

    A shell would end by it and leave its programs, unless it has a trap. Then it also sees to what runs in background.
    Of a pipe, only the program that it begins with is meant: what reads from it ends by itself, and takes the rest.
    """
    program = process_tree.command_line(pid)[:1]
    if not program or os.path.basename(os.fsdecode(program[0])).lstrip("-") not in _SHELLS:
        return [pid]
    has_trap = process_tree.catches(pid, number)
    # A script lets what has `&` ignore it. What this process ignores, as below `nohup`, all of them do.
    tells = has_trap and signal.getsignal(signal.SIGQUIT) is not signal.SIG_IGN
    children = process_tree.children_of(pid)
    pipes = {process_tree.pipe_of(child, 1) for child in children} - {""}
    below = []
    for child in children:
        is_background = tells and process_tree.ignores(child, signal.SIGQUIT)
        if not is_background and process_tree.pipe_of(child, 0) not in pipes:
            below += to_warn(child, number)
    return [pid, *below] if has_trap or not below else below


def launcher_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables from which torchrun takes the options that its command line leaves out.

    Args:
        env: Of the job: clusterfn has set the address and the number of each node, and which GPUs it has.
    """
    found = {}
    nodes, tasks = int(env.get("GROUP_WORLD_SIZE") or 1), int(env.get("LOCAL_WORLD_SIZE") or 1)
    gpus = _gpus(env)
    if gpus and tasks == 1:
        found["PET_NPROC_PER_NODE"] = str(len(gpus))
    if nodes > 1 and tasks == 1:
        address, port = env["MASTER_ADDR"], env["MASTER_PORT"]
        found.update(
            PET_NNODES=str(nodes),
            PET_NODE_RANK=env["NODE_RANK"],
            PET_MASTER_ADDR=address,
            PET_MASTER_PORT=port,
            PET_RDZV_ENDPOINT=f"{address}:{port}",
            PET_RDZV_ID=env.get("CLUSTERFN_JOB", "job").replace("/", "-"),
        )
    elif nodes == 1:
        # Another job on this machine may use the usual port.
        found["PET_MASTER_PORT"] = str(free_port())
    return {name: text for name, text in found.items() if name not in env}


def variables_of_sbatch(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that sbatch sets for a script on one node; none where it has set them itself.

    Only a script gets them: a function, and what it imports, would take its process for one that `srun` has started.
    """
    if "SLURM_JOB_ID" in env:
        return {}
    job, _, attempt = env.get(TAG, "0/1").partition("/")
    # Scripts compute with it: ports, seeds.
    number = 10**8 + int(job.partition(".")[0], 16) % 10**8
    element = env.get(INDEX_VARIABLE)
    node = os.uname().nodename.partition(".")[0]
    user = user_name(os.getuid())
    gpus = _gpus(env)
    found = {
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), str(number + int(element or 0))),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "1"),
        **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS"), "0"),
        **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST"), node),
        **dict.fromkeys(("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"), env.get(THREADS[0], "1")),
        "SLURM_JOB_USER": user,
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_TASK_PID": str(os.getpid()),
    }
    if gpus:
        found.update(SLURM_GPUS_ON_NODE=str(len(gpus)), SLURM_JOB_GPUS=",".join(gpus))
    if element:
        found["SLURM_ARRAY_JOB_ID"] = str(number)
    if attempt not in ("", "1"):
        found["SLURM_RESTART_COUNT"] = str(int(attempt) - 1)
    return found


def with_nodes(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Add to `accelerate launch` on several nodes what its command line leaves out; it takes none of it from variables.

    Example:
        >>> here = {"GROUP_WORLD_SIZE": "2", "NODE_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "4567"}
        >>> with_nodes(["accelerate", "launch", "--num_processes=4", "train.py"], here)[2:5]
        ['--num_machines=2', '--machine_rank=1', '--main_process_ip=n1']
    """
    at = _launch_of_accelerate(words)
    nodes = int(env.get("GROUP_WORLD_SIZE") or 1)
    if not at or nodes == 1 or int(env.get("LOCAL_WORLD_SIZE") or 1) > 1:
        return list(words)
    end = next((place for place, word in enumerate(words) if place >= at and word.endswith(".py")), len(words))
    given = {word[2:].partition("=")[0].replace("-", "_") for word in words[at:end] if word.startswith("--")}
    values = {
        "num_machines": nodes,
        "machine_rank": env["NODE_RANK"],
        "main_process_ip": env["MASTER_ADDR"],
        "main_process_port": env["MASTER_PORT"],
    }
    if "config_file" not in given:
        values["num_processes"] = nodes * max(1, len(_gpus(env)))
    added = [f"--{name}={value}" for name, value in values.items() if name not in given]
    # With one GPU on each node it would train alone on each.
    if not given.intersection(_KINDS):
        added.append("--multi_gpu")
    return [*words[:at], *added, *words[at:]]


def _gpus(env: Mapping[str, str]) -> list[str]:
    return [gpu for gpu in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]


def _launch_of_accelerate(words: Sequence[str]) -> int:
    """Return where the options of `accelerate launch` begin; 0 for any other command."""
    if os.path.basename(words[0]) == "accelerate" and words[1:2] == ["launch"]:
        return 2
    modules = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")
    if words[1:2] == ["-m"] and words[2:3] and words[2] in modules:
        return 3 if words[2] == modules[0] else 4
    return 1 if os.path.basename(words[0]) == "accelerate-launch" else 0
