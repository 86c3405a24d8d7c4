"""The commands and their words.

Each command is a function of the parsed arguments that returns an exit code. A command's module is imported
when the command runs, so that `clusterfn --help` starts fast.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

from clusterfn import __version__
from clusterfn.bridge.schedulers.registry import SCHEDULERS
from clusterfn.cli.argument_parser import Command, CommandParser, Parser, add_arguments, add_command

# What a screen of 24 lines with 80 columns holds.
_OVERVIEW = """\
Run Python functions on GPU servers and SLURM clusters over SSH.

  run       run a command, a script, a module or a function on a host
  jobs      list the jobs on hosts, newest first
  logs      show what a job has printed; with -f, until it ends
  result    wait for a job and print its value
  cancel    withdraw waiting jobs, and end running ones

try it here:    demo
set up a host:  init, check, trust, login, logout, hosts, config, completion
see its state:  gpus, top, usage
see a job:      attach, stack; script (what run would send)
reach a job:    shell, tunnel, pull
remove:         rm (jobs), clean (old jobs and files)
more:           env (build environments), kernel and jupyter (notebooks)

HOST is always a plain word: the name of a host in clusterfn.yml, or "local".
`clusterfn COMMAND --help` begins with an example. -v shows all details.
exit codes: 0, 1 (job or host failed), 2 (usage), 130 (Ctrl-C), or the command's
variables: CLUSTERFN_CONFIG, _HOST, _LOCAL=1, _QUIET=1, _DEBUG=1 (-v); NO_COLOR
"""
_JOB = (
    "a job's id, its first four digits or more, or a name, which means the newest job of that name; "
    "add a HOST if clusterfn cannot tell where it is"
)
_ENVIRONMENT_ID = "an environment's id, or its first digits, or the file it was made from; and the name of a host"
_FILE_AND_HOST = "a file such as environment.yml (the host's, else ./environment.yml), and the name of a host"

# Arguments that several commands have.
_HOST = {"host HOST?": "its name in clusterfn.yml (the one that a call would use)"}
_NAMED_HOST = {"host HOST": "its name in clusterfn.yml"}
_HOSTS = {
    "hosts HOST*": "names in clusterfn.yml (the one that a call would use)",
    "--all-hosts": "all hosts of clusterfn.yml at once",
}
_SINCE = {"--since TIME": "only those sent since then: 2h, 7d or 2026-03-31"}
_FILTERS = {
    "-n --number N": "only the N newest",
    "--state STATE[,STATE]": (
        "only these: pending, running, returned, raised, died, cancelled, ...; active, ended, failed"
    ),
    **_SINCE,
}
_DRY_RUN = {"--dry-run": "remove nothing; show what would be removed"}
_YES = {"--yes": "do not ask where -n or --all means several jobs"}
_CORES_AND_MEMORY = {"--cores N": None, "--memory AMOUNT": "such as 16GB"}
_TIME = {"--time DURATION": "such as 90min, 2h or 02:00:00"}
_GPU_TYPE = {"--gpu-type NAME": "of each GPU, such as a6000"}
_GPU_MEMORY_AND_TYPE = {"--gpu-memory AMOUNT": "of each GPU, such as 24GB", **_GPU_TYPE}
_BINDS = {"--binds FOLDER*": "a folder that its image shows, or FOLDER:FOLDER_IN_THE_IMAGE; can be repeated"}
_PACKAGES = {"--packages PACKAGE+": 'instead of a file, as packages= of @cluster: "python=3.11" "numpy>=2"'}


@functools.cache
def make_parser() -> Parser:
    """Make the parser of the whole command line."""
    parser = Parser(prog="clusterfn")
    parser.overview = _OVERVIEW
    parser.add_argument("--version", action="version", version=f"clusterfn {__version__}")
    add_arguments(parser, {"-v --verbose": "show all details, and our own tracebacks"})

    def show_help(args: argparse.Namespace) -> int:
        """Do what the bare word `clusterfn` does."""
        parser.print_help(sys.stderr)
        return 2

    parser.set_defaults(run=show_help, parser=parser)
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", parser_class=CommandParser)
    _add_init(commands)
    _add_hosts(commands)
    _add_logins(commands)
    _add_calls(commands)
    _add_jobs(commands)
    _add_env(commands, show_help)
    _add_settings(commands)
    _add_jupyter(commands, show_help)
    parser.commands = tuple(commands.choices)
    return parser


def _add_init(commands: Any) -> None:
    about = "set up a host: key, login, clusterfn.yml, and a first script that runs"
    command = add_command(commands, "init", "init.init", about, {
        "address ADDRESS?": "user@name, user@name:port, or an alias of ~/.ssh/config",
    })  # fmt: skip
    answers = command.add_argument_group("answers in advance; without them clusterfn asks")
    add_arguments(
        answers,
        {
            "--name NAME": "what to call it in clusterfn.yml",
            "--fingerprint SHA256:...*": "trust the key that has this fingerprint",
            "--replace": "replace a different key of the host in known_hosts",
            "--no-key": "create no SSH key, and copy none to the host",
        },
    )
    about = "a machine without a queue, SLURM, or Grid Engine"
    answers.add_argument("--scheduler", choices=["bare", *SCHEDULERS], help=about)
    add_arguments(
        answers,
        {
            "--scheduler-path FOLDER": "the host's folder that has sbatch or qsub, where no login shell finds them",
            "--root FOLDER": "the host's folder for jobs, results and your code",
            "--environment WHICH": "the Python that runs your functions",
            "--partition NAME": "the partition of SLURM, or the queue of Grid Engine, for jobs without GPUs",
            "--gpu-partition NAME": "the partition of SLURM, or the queue of Grid Engine, for jobs with GPUs",
            "--account NAME": "the SLURM account to charge",
            "--yes": "accept all defaults; host keys are still confirmed",
        },
    )


def _add_hosts(commands: Any) -> None:
    about = "run eight short calls on this machine; needs no server and leaves nothing"
    add_command(commands, "demo", "run.demo", about)
    about = "test a host step by step, and show how to fix what fails"
    add_command(commands, "check", "check.check", about, {
        **_HOST,
        "--environment WHICH": "the environment to look for (the host's)",
        **_BINDS,
        "--no-job": "run no function on the host",
        "--gpus N=0": "also calculate on N GPUs with the environment's PyTorch",
        "--timeout SECONDS": "how long to wait for the function (60 in a queue, 300 in all)",
    }, json="one object when all steps have ended, or an array for a list of hosts")  # fmt: skip
    about = "remove old jobs, and files that were sent for them, from a host"
    add_command(commands, "clean", "clean.clean", about, {
        **_HOST,
        "--older DURATION": "jobs that ended, and files last used, longer ago than this, such as 1d (the host's keep:)",
        **_DRY_RUN,
    }, json="one object, sizes in bytes")  # fmt: skip
    add_command(commands, "gpus", "gpus.gpus", "show who uses the GPUs of a host, and who waits for one", {
        **_HOST, "--watch": "show all GPUs again and again, until q, Esc or Ctrl-C",
    }, json="one object, or an array for a list of hosts")  # fmt: skip
    about = "show what runs on a host, what it uses, and who is next; refreshes until q, Esc or Ctrl-C"
    add_command(commands, "top", "top.top", about, {
        **_HOST, "--once": "look once, as without a terminal",
    }, json="one object: own jobs, and on a machine without a scheduler those of all users")  # fmt: skip
    about = "compare what ended jobs asked for with what they used, and suggest smaller requests"
    add_command(commands, "usage", "jobs.usage", about, {
        **_HOSTS, "-n --number N": "only the N newest jobs", **_SINCE,
    }, json="one array, an object for each function and request", mixes=True).set_defaults(state=None)  # fmt: skip


def _add_logins(commands: Any) -> None:
    add_command(commands, "trust", "login.trust", "show a host's key, ask whether it is right, and remember it", {
        **_NAMED_HOST,
        "--fingerprint SHA256:...*": "trust the key that has this fingerprint, and do not ask",
        "--replace": "replace a different key in known_hosts",
    })  # fmt: skip
    add_command(commands, "login", "login.login", "log in once, and share the connection with all your programs", {
        "host HOST?": "its name in clusterfn.yml; without it, list the shared connections",
    }, json="one object; without HOST one array")  # fmt: skip
    about = "end the shared connection; jobs on the host keep running"
    add_command(commands, "logout", "login.logout", about, _NAMED_HOST, json="one object")


def _add_calls(commands: Any) -> None:
    about = "run a command, a script or a module on a host, or a function of a file"
    command = _add_call(commands, "run", "run.run", about, {
        "--detach": "send the call, print its id, and do not wait",
        "--outputs PATTERN*":
            "fetch files that match, such as '*.pt', into this folder at the end; can be repeated",
    }, "the value, or the exit status of a command; what it prints goes to stderr")  # fmt: skip
    add_arguments(
        command.add_argument_group("of a command or a script"),
        {
            "--map NAME=VALUE,VALUE*": (
                "run it once for each value, which takes the place {NAME}; several --map: for each combination"
            ),
            "--max-parallel N": "with --map: how many run at the same time",
            "--result FILE": "print what is in this JSON file, which the command writes",
            "--stdin FILE": "a local file for its standard input (what is piped in)",
        },
    )
    about = "show what run would send and start; sends nothing"
    command = _add_call(commands, "script", "run.script", about, {}, "one object")
    command.set_defaults(map=[], result=None, stdin=None)


def _add_call(commands: Any, name: str, run: str, about: str, more: dict[str, str], json: str) -> CommandParser:
    usage = (
        "%(prog)s [options] [HOST] -- COMMAND [ARG ...]\n"
        "       %(prog)s [options] [HOST] SCRIPT [ARG ...]\n"
        "       %(prog)s [options] [HOST] -m MODULE [ARG ...]\n"
        "       %(prog)s [options] [HOST] FILE.py::FUNCTION [ARG ...]"
    )
    command = add_command(commands, name, run, about, {
        "target FILE.py::FUNCTION":
            "a function: path of its file, two colons, its name; or a script; a HOST may come before it",
        "words ARG*":
            "of a function: Python literals or plain words, name=value for keywords; -- before a word that begins "
            "with -. Of a command, a script or a module: all words and options after it, as they are",
        **more,
    }, json=json, usage=usage, mixes=True)  # fmt: skip
    options = command.add_argument_group("options that override those of @cluster")
    add_arguments(options, {
        **_CORES_AND_MEMORY, "--gpus N": None, **_GPU_MEMORY_AND_TYPE,
        "--resume ID": "start with a copy of the checkpoint of that job",
        **_TIME,
        "--warn-before DURATION": "warn the function so long before its time is over",
        "--requeue CAUSE*":
            "timeout, preempted or node: start the job again, three times or as node=5 says; can be repeated",
        "--environment WHICH": "such as python:/opt/envs/ml/bin/python or conda:ml",
        **_BINDS,
        "--nodes N": "nodes of SLURM; each of them runs it",
        "--tasks-per-node N": "processes on each node, as srun starts them",
        "--cwd FOLDER": "run in this folder of the host; no file is sent",
        "--name NAME": "the name of the job",
        "--retries N": "tries after a transient failure",
        "--notify LINE": "the host runs this line of shell when the job has ended",
    })  # fmt: skip
    about = "a variable of this machine that only this job gets; can be repeated"
    options.add_argument("--secret", dest="secrets", metavar="NAME", action="append", default=[], help=about)
    add_arguments(
        options,
        {
            "--env NAME=VALUE*": "a variable of the job; can be repeated",
            "--slurm OPTION=VALUE*": "an option of sbatch by its long name, such as partition=gpu; can be repeated",
        },
    )
    return command


def _add_jobs(commands: Any) -> None:
    about = "list the jobs on hosts, newest first"
    times = "one array, times in seconds since 1970"
    add_command(commands, "jobs", "jobs.jobs", about, {
        **_HOSTS, **_FILTERS, "-n --number N": "only the N newest (30; all with --json)",
    }, json=times, mixes=True)  # fmt: skip
    one: dict[str, str | None] = {"words ID+": _JOB}
    usage = "%(prog)s [options] ID [HOST]"
    command = add_command(commands, "logs", "output.logs", "show what a job has printed", {
        **one, "-f --follow": "keep printing until the job ends",
    }, json="one object", usage=usage, mixes=True)  # fmt: skip
    which = command.add_mutually_exclusive_group()
    for stream, about in (
        ("stdout", "stdout alone"),
        ("stderr", "stderr alone, which a pipe then gets"),
        ("scheduler", "what the scheduler and clusterfn's supervisor wrote"),
    ):
        which.add_argument(f"--{stream}", action="store_const", dest="stream", const=stream, help=about)
    about = "wait for a job and print its value"
    add_command(commands, "result", "output.result", about, one, json="the value", usage=usage, mixes=True)
    about = "show the output of a job from its start, and follow it to the end"
    add_command(commands, "attach", "output.attach", about, one, usage=usage, mixes=True)
    about = "show the stack of every thread of a running job"
    add_command(commands, "stack", "output.stack", about, one, json="one object", usage=usage, mixes=True)
    about = "withdraw waiting jobs, and end running ones with all their processes"
    done = "one array: each job, what was done, and its state"
    _add_several(commands, "cancel", "cancel.cancel", about, _YES, done, aliases=["stop"])
    add_command(commands, "pull", "output.pull", "fetch the files that a job has left on its host", {
        **one,
        "--only PATTERN*": "files to fetch, such as '*.pt'; can be repeated (the outputs= of the job, else all)",
        "--to FOLDER=.": "where to put them (the working directory)",
    }, json="one object", usage=usage, mixes=True)  # fmt: skip
    about = "reach a port of a running job, such as TensorBoard's, at a port of this machine"
    add_command(commands, "tunnel", "shell.tunnel", about, {
        "words ID PORT+": f"{_JOB}; and the port on the job's machine",
        "--local-port N": "port of this machine (the same number, or any free one)",
    }, usage="%(prog)s [options] ID PORT [HOST]", mixes=True)  # fmt: skip
    about = "open a shell on a host in the environment of its jobs, or in the folder and environment of a job"
    add_command(commands, "shell", "shell.shell", about, {
        "words ID*": f"a HOST alone, or {_JOB}",
        "--environment WHICH": "an environment other than the host's",
        **_BINDS,
    }, usage="%(prog)s [options] [ID] [HOST]", mixes=True)  # fmt: skip
    about = "remove ended jobs from their hosts, with all their files; cancel a running job first"
    _add_several(commands, "rm", "clean.remove", about, {**_YES, **_DRY_RUN}, "one object, sizes in bytes")


def _add_several(
    commands: Any, name: str, run: str, about: str, more: dict[str, str], json: str, aliases: Any = ()
) -> CommandParser:
    """Add a command about any number of jobs."""
    arguments = {"words ID*": _JOB, "--all": "all jobs of that name, or of the HOST", **_FILTERS, **more}
    usage = "%(prog)s [options] ID [ID ...] [HOST]"
    return add_command(commands, name, run, about, arguments, json=json, usage=usage, mixes=True, aliases=aliases)


def _add_env(commands: Any, show_help: Command) -> None:
    env = add_command(commands, "env", show_help, "lock environments, and build, show and remove them on hosts")
    words = env.add_subparsers(metavar="COMMAND", dest="what", parser_class=CommandParser, required=True)
    add_command(words, "lock", "env.build.lock", "choose the packages of an environment, and write a lock file", {
        "words FILE HOST*": f"{_FILE_AND_HOST}, or several hosts",
        **_PACKAGES,
        "--gpus N": "for a job with N GPUs (without it: for the GPUs that the host is known to have)",
    }, json="one array, an object for each host")  # fmt: skip
    add_command(words, "build", "env.build.build", "build an environment on a host, before a job needs it", {
        "words FILE HOST*": _FILE_AND_HOST, **_PACKAGES,
        "--gpus N=0": "choose the build of PyTorch as for a job with N GPUs",
    }, json="one object, or an array for a list of hosts")  # fmt: skip
    about = "list the environments on a host, most recently used first"
    times = "one array, times in seconds since 1970"
    add_command(words, "list", "env.list_environments", about, _HOST, json=times)
    one, usage = {"words ID+": _ENVIRONMENT_ID}, "%(prog)s [options] ID|FILE [HOST]"
    for name, run, about in (
        ("show", "env.show_environment", "show everything about an environment"),
        ("verify", "env.verify_environment", "restore missing files, and import its packages"),
        ("remove", "env.remove_environment", "remove an environment that no job uses"),
    ):
        add_command(words, name, run, about, one, json="one object", usage=usage, mixes=True)
    add_command(words, "gc", "env.remove_unused", "remove environments not used for a long time", {
        **_HOST, "--days N=30.0": "not used for N days (30)", "--keep N=5": "keep the N most recently used (5)",
        **_DRY_RUN,
    }, json="one object, sizes in bytes")  # fmt: skip


def _add_settings(commands: Any) -> None:
    about = "list the hosts of clusterfn.yml; connects to none"
    add_command(commands, "hosts", "config.hosts", about, json="one array")
    about = "show each setting of a host, and the line of the file that it comes from"
    add_command(commands, "config", "config.config", about, {
        **_HOST, "--schema": "print the JSON Schema of clusterfn.yml, for editors",
    }, json="one array of objects")  # fmt: skip
    about = "print what a shell needs to complete commands, hosts and job ids"
    command = add_command(commands, "completion", "completion.completion", about)
    command.add_argument("shell", metavar="SHELL", nargs="?", choices=("bash", "zsh"), help="bash or zsh")
    about = "print only the words that can be completed: hosts, or jobs"
    command.add_argument("--words", metavar="KIND", choices=("hosts", "jobs"), help=about)


def _add_jupyter(commands: Any, show_help: Command) -> None:
    kernel = add_command(commands, "kernel", show_help, "run Jupyter kernels on a host, for JupyterLab and VS Code")
    words = kernel.add_subparsers(metavar="COMMAND", dest="what", parser_class=CommandParser, required=True)
    add_command(words, "add", "jupyter.add", "add a kernel on a host to those that Jupyter and VS Code offer", {
        **_HOST, "--name NAME": "what Jupyter and VS Code show (the host, and its GPUs)", **_kernel_options(),
    })  # fmt: skip
    add_command(words, "run", "kernel.run", "run as a kernel; Jupyter starts this command, not you", {
        **_NAMED_HOST, **_kernel_options(), "connection_file CONNECTION_FILE": "the file that Jupyter has written",
    })  # fmt: skip
    about = "run JupyterLab on a host, and open it in your browser"
    lab = {**_HOST, "--port N=0": "local port for the browser (any free one)"}
    command = add_command(commands, "jupyter", "jupyter.jupyter", about, lab)
    command.add_argument("--no-browser", dest="browser", action="store_false", help="print the address only")
    add_arguments(command, _kernel_options("JupyterLab", "jupyterlab"))


def _kernel_options(what: str = "the kernel", program: str = "ipykernel") -> dict[str, str | None]:
    return {
        **_CORES_AND_MEMORY,
        "--gpus N": f"GPUs that {what} holds until it ends",
        **_GPU_MEMORY_AND_TYPE,
        "--time DURATION": f"end {what} after this, such as 8h",
        "--environment WHICH": f"such as environment.yml or conda:ml; it must have {program} (the host's)",
        **_BINDS,
        "--idle DURATION": f"end {what} when no cell has run for this long (2h)",
        "--cwd FOLDER": "folder on the host in which cells run (~)",
    }
