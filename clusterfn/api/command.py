"""`run` and `command`: a command, a script or a module in a job, with all that a call of a function has.

A command is a `ClusterFunction` whose function runs it (`bridge/worker/command.py`). Its parameters are the places
`{name}` in it. Typing mistakes are rejected here, before anything is sent.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.api.decorator import ClusterFunction, cluster
from clusterfn.bridge.layout import THREADS
from clusterfn.bridge.worker.command_line import PLACE, places_in
from clusterfn.calls.demand import job_name
from clusterfn.config import config_file, places
from clusterfn.config.environment_kinds import OF_SCRIPT, header_of_script
from clusterfn.config.options import HOST_VARIABLE, SCRIPTS, CallOptions, parse_options
from clusterfn.config.scheduler_keys import keys_by_scheduler
from clusterfn.config.spec import merged
from clusterfn.display import console, labels
from clusterfn.errors import CommandFailed, ConfigError, did_you_mean
from clusterfn.packing.files import File
from clusterfn.packing.project import explain
from clusterfn.packing.project.git import commit_of
from clusterfn.packing.project.model import Project, project_of, working_directory
from clusterfn.public_api import public_api, show_options
from clusterfn.scheduler.slurm.script import ARRAY_VARIABLE, DIRECTIVE, LAYOUT, SbatchScript, in_words, read_sbatch

if TYPE_CHECKING:
    from typing_extensions import Unpack

_FOR_A_SHELL = re.compile(r"[|&;<>()$`*?\[\]~#\n\\]|^\s*\w+=")
_INTERPRETERS = re.compile(r"(?:python[\d.]*|torchrun|accelerate|deepspeed|bash|sh|srun|mpirun|env)")
_ALONE = ("bash", "sh", "zsh", "fish", "python", "python3", "ipython")
_ON_A_SCREEN = ("vim", "vi", "nano", "emacs", "htop", "top", "nvtop", "less", "more", "tmux", "screen")
_OF_A_SHELL = frozenset(
    ["alias", "cd", "command", "eval", "exec", "exit", "export", "for", "if", "module", "set", "source", "trap",
     "ulimit", "umask", "unset", "until", "while", "case", "."]
)  # fmt: skip
_CALLS_SRUN = re.compile(r"^[ \t]*srun\b", re.MULTILINE)
_REQUEUES_TASK = re.compile(r"\bscontrol\s+requeue.*SLURM_ARRAY_TASK_ID")
_HAS_SRUN = re.compile(r"\bsrun *\(\)")
ONE_TASK = (
    "to start one task there, add this line to the script: "
    'command -v srun >/dev/null || srun() { env -u SLURM_NTASKS "$@"; }'
)
_FINDS_ITSELF = re.compile(r"\bscontrol\b(?s:.*)\bCommand=")
_OWN_DOLLARS = ("awk", "sed", "perl")
_EXPANDED_THERE = re.compile(r"~(?:/|$)|.*\$(?:\w|\{)")


class CommandText(NamedTuple):
    """A command as it is written.

    Attributes:
        words: What to start, as it is; empty for a line.
        line: The line for a shell; "" for words.
        names: The places in it that take values.
    """

    words: tuple[str, ...]
    line: str
    names: tuple[str, ...]


class _SentCommand(NamedTuple):
    """What a job gets of a command: its fields are those that `bridge/worker/command.run` reads, as a dict.

    Attributes:
        words: What to start; a script as the job finds it. Empty for a line.
        line: The line for a shell; "" for words.
        shown: What errors show of it.
        project: What the job gets a copy of; None if nothing is sent.
        result: The JSON file with its value.
        stdin: The file that it reads from its standard input.
        env: Variables that it gets; None takes one away.
        first: Whether the first of several nodes alone runs it, as a script of sbatch.
        signal: The name of the signal that warns it before the end of its time; "" for SIGTERM.
        alone: Whether that signal is for its shell alone, and not for what the shell runs.
        logs: Names by which a script of sbatch finds its output and its errors, as sbatch's patterns.
        roots: The folders of the project from which its modules are imported.
        scripts: The console scripts of the project, and what each calls.
    """

    words: tuple[str, ...]
    line: str
    shown: str
    project: Project | None
    result: str | None
    stdin: File | None
    env: dict[str, str | None]
    first: bool = False
    signal: str = ""
    alone: bool = False
    logs: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    scripts: Mapping[str, str] = {}


@show_options(CallOptions)
@public_api
def run(line: str | Sequence[str], *, result: str | None = None, stdin: str | os.PathLike[str] | None = None,
        **options: Unpack[CallOptions]) -> Any:  # fmt: skip
    """Run a command on a host, in a copy of your project, and show its output.

    Args:
        line: As for `command`, without places.
        result: As for `command`.
        stdin: As for `command`.
        options: As in `CallOptions`.

    Returns:
        What is in the file that `result` names; else None.

    Raises:
        CommandFailed: It failed; `error.exit_status` says how.

    Example:
        >>> clusterfn.run(["python", "train.py", "--lr", "0.1"], host="tensor01", gpus=1)
    """
    prepared = make_command(text := read_command(line), _redirected(options), result, stdin)
    if text.names:
        hint = f"call clusterfn.command(...)({text.names[0]}=...), or double the braces for text"
        raise ConfigError(f"the place {{{text.names[0]}}} of the command has no value", hint=hint)
    try:
        return prepared.function.map(prepared.array).results() if prepared.array else prepared.function()
    except CommandFailed as error:
        if prepared.project is not None:
            error.hint = error.hint or explain.of_command(error.evidence, prepared.project)
        raise


@show_options(CallOptions)
@public_api
def command(line: str | Sequence[str], *, result: str | None = None, stdin: str | os.PathLike[str] | None = None,
            **options: Unpack[CallOptions]) -> ClusterFunction[..., Any]:  # fmt: skip
    """Make a function of a command: call it, or use `submit`, `map` and `clusterfn.sweep`, as with any function.

    The job gets a copy of the project: the working directory, or the folder of a script that is elsewhere. In a git
    repository it has what git tracks or would add. With `cwd=`, the command runs in that folder of the host instead.

    Args:
        line: A list of words, which the command gets as they are; or a line as a shell reads it. `{lr}` is a
            place for a value, which becomes a parameter; `{{lr}}` is the text `{lr}`.
        result: Name of a JSON file that the command writes in its working folder. Its content is the value.
        stdin: A local file that the command reads from its standard input. Default: nothing.
        options: As in `CallOptions`.

    Raises:
        ConfigError: The command cannot run so, or an option is wrong.

    Example:
        >>> train = clusterfn.command("torchrun train.py --lr {lr}", gpus=4, host="tensor01")
        >>> train.map([1e-3, 1e-4]).results()
    """
    return make_command(read_command(line), _redirected(options), result, stdin).function


def _redirected(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the host that the variable chooses, as `cluster` does."""
    redirected = os.environ.get(HOST_VARIABLE)
    return {**options, "host": redirected} if redirected else dict(options)


def command_as_shown(text: CommandText) -> str:
    """Return a command as people read it, without the values of secrets."""
    # A place needs no quotes, and neither does a word that is nothing else.
    plain = [PLACE.sub("", word) or "x" for word in text.words]
    bare = [word if shlex.quote(rest) == rest else shlex.quote(word) for word, rest in zip(text.words, plain)]
    return labels.without_secrets(text.line or " ".join(bare))


class PreparedCommand(NamedTuple):
    """A command as a function.

    Attributes:
        function: It runs the command.
        array: The values of its one parameter, if a script of sbatch asks for an array of them.
        max_parallel: How many of them it wants to run at the same time; None if it does not say.
        project: What the job gets a copy of; None if nothing is sent.
    """

    function: ClusterFunction[..., Any]
    array: list[str]
    max_parallel: int | None
    project: Project | None = None


def read_command(line: str | Sequence[str]) -> CommandText:
    """Read a command with its places.

    Example:
        >>> read_command("python train.py --lr {lr}").names
        ('lr',)
        >>> read_command("cat *.txt | wc -l").line
        'cat *.txt | wc -l'
    """
    if callable(line):
        hint = "call it: f(...)" if isinstance(line, ClusterFunction) else "decorate it with @cluster, and call it"
        raise ConfigError(f"{line!r:.80} is a function, not a command", hint=hint)
    whole = isinstance(line, str)
    words = [line] if isinstance(line, str) else line
    texts = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in words]
    if wrong := [word for word in texts if not isinstance(word, str)]:
        raise ConfigError(f"{wrong[0]!r:.80} is not a word of a command", hint=f'write it as text: "{wrong[0]}"')
    names = places_in(texts)
    # Those of a place are left to what fills it.
    texts = [
        PLACE.sub(lambda found: found[0] if found[2] or found[1][1:-1] in names else found[1], text) for text in texts
    ]
    return (_split_line(texts[0]) if whole else CommandText(tuple(texts), "", ()))._replace(names=names)


def _split_line(line: str) -> CommandText:
    """Split what needs no shell; such a command is started by itself."""
    if not _FOR_A_SHELL.search(line) and line.split()[:1] and line.split()[0] not in _OF_A_SHELL:
        try:
            return CommandText(tuple(shlex.split(line)), "", ())
        except ValueError as error:
            raise ConfigError(f"{line!r:.80} is no complete command: {error}", hint="close the quotes") from None
    return CommandText((), line, ())


def line_of_one_word(word: str) -> CommandText:
    """Read what a person has put into one pair of quotes on the command line: a line, if it has blanks."""
    return _split_line(word) if word.split() != [word] else CommandText((word,), "", ())


def make_command(
    text: CommandText, options: dict[str, Any], result: str | None = None, stdin: str | os.PathLike[str] | None = None
) -> PreparedCommand:
    """Make the function that runs a command; find its script, its project, and its #SBATCH lines.

    Raises:
        ConfigError: It cannot run so.
    """
    if not (text.words or text.line.strip()):
        raise ConfigError("there is no command", hint='write it as ["python", "train.py"], or "python train.py"')
    if options.get("cwd") is None:
        words, script, project = _find_project(text)
    else:
        # With `cwd` the script and its project are already on the host, so nothing is looked for here.
        words, script, project = text.words, None, None
    _reject_what_cannot_run(words or tuple(text.line.split()), options, bool(text.line), stdin is not None)
    sbatch: SbatchScript | None = None
    if script is not None and text.words[0].endswith(script.name):
        sbatch, options = _read_directives(script, options)
    elif script is not None and "\n#SBATCH" in script.read_text(encoding="utf-8", errors="replace"):
        how = f"clusterfn run {options.get('host') or 'HOST'} {script.name}"
        console.warn(f"{text.words[0]} reads no #SBATCH lines, so those of {script.name} do not count; write {how}")
    options = options if script is None else _with_header(script, options)
    names = text.names
    shown = command_as_shown(text._replace(words=words))
    commit = commit_of(str(project)) if project is not None else {}
    sent = _SentCommand(words, text.line, shown, project, result, None if stdin is None else File(stdin), commit)
    if project is not None:
        sent = sent._replace(**project.declared()._asdict())
    if sbatch is not None and script is not None:
        sent = sent._replace(first=True, signal=sbatch.signal, alone=sbatch.alone, logs=sbatch.logs)
        sent.env.update(sbatch.env)
        names = (*names, ARRAY_VARIABLE) if sbatch.array else names
        # The name in a #SBATCH line may have characters that job names here may not have.
        options["name"] = job_name(options.get("name") or script.stem)
    called: Any = functools.partial(_runner(), sent._asdict(), names)
    # `jobs` shows the command line; a sweep rejects a command that returns no value.
    called.__name__ = called.__qualname__ = _name_of(words, text.line, script)
    called.command_line = command_as_shown(text)
    called.is_without_value = result is None
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    called.__signature__ = inspect.Signature(parameters)
    function: ClusterFunction[..., Any] = cluster(**options)(called)
    if sbatch is not None and sbatch.request:
        # These are words of sbatch itself, which `slurm=` would in part reject.
        request = merged(sbatch.request, function.options.scheduler_options.get("slurm", {}))
        function = ClusterFunction(called, function.options._replace(scheduler_options={"slurm": request}))
    return PreparedCommand(function, sbatch.array if sbatch else [], sbatch.max_parallel if sbatch else None, project)


def _read_directives(script: Path, options: dict[str, Any]) -> tuple[SbatchScript | None, dict[str, Any]]:
    """Read what a script asks sbatch for, say it, and what of it is not taken; return it with the options of the call.

    What is read is None if there is nothing.
    """
    text = script.read_text(encoding="utf-8", errors="replace")
    # Without such a line no host need be known yet.
    if not DIRECTIVE.search(text):
        return None, options
    called = parse_options({"host": options.get("host")})
    among = config_file.hosts_of_call(called)
    has_slurm = any(keys_by_scheduler()[call.host.scheduler].of_call is not None for call in among)
    # A host with SLURM takes the lines as they are, and its own keys complete them.
    host = among[0].config.resolve(called.host)[0] if has_slurm else among[0].host
    given = {name: value for name, value in options.items() if value is not None}
    found = read_sbatch(text, has_slurm, script.name, given)
    if found is None:
        return None, options
    if not has_slurm and _CALLS_SRUN.search(text) and not _HAS_SRUN.search(text):
        raise ConfigError(f"{script.name} calls srun, which {host.name} does not have", hint=ONE_TASK)
    env: dict[str, str | None] = {**found.env, "SLURM_JOB_NAME": {**found.options, **given}.get("name", script.name)}
    if has_slurm:
        usual = {
            "cpus-per-task": host.defaults.cores == 1,
            "mem": host.defaults.memory_bytes == config_file.USUAL_MEMORY,
        }
        found.leave_to_sbatch(given, filter(usual.get, usual))
        # sbatch leaves them unset, so that each of several tasks counts its own cores.
        env.update(dict.fromkeys(name for name in THREADS if name not in host.env))
    if has_slurm and _FINDS_ITSELF.search(text):
        advice = (
            "looks for itself by scontrol, which names clusterfn's job.sh: the copy of its project is $SLURM_SUBMIT_DIR"
        )
        console.warn(f"{script.name} {advice}")
    asks = {name: value for name, value in found.options.items() if not (has_slurm and name in LAYOUT)}
    console.tell(f"{script.name} asks for {in_words({**asks, **found.request}) or 'nothing'}")
    if found.not_taken:
        console.warn(f"not taken from {script.name}: {'; '.join(found.not_taken)}")
    if found.array and _REQUEUES_TASK.search(text):
        problem = f"{script.name} has itself requeued by its number in the array, which is another one here"
        raise ConfigError(problem, hint="write in it: scontrol requeue $SLURM_JOB_ID")
    if has_slurm and found.array and found.signal and "SLURM_ARRAY_JOB_ID" not in text:
        # Lightning and submitit would have another task requeued when the signal comes; without this variable they
        # take $SLURM_JOB_ID.
        env["SLURM_ARRAY_JOB_ID"] = None
    if has_slurm:
        # Of a file that says nothing about it, the site decides whether SLURM starts it again.
        found.request = merged({"requeue": host.scheduler_options.get("requeue")}, found.request)
    found.env = {name: value for name, value in env.items() if name not in given.get("env", {})}
    return found, {**found.options, **given}


def _with_header(script: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Let a script that names its packages itself have them, where neither the call nor its host says more."""
    if options.get("environment") == OF_SCRIPT:
        return {**options, "environment": str(script)}
    text = script.read_text(encoding="utf-8", errors="replace") if script.suffix == ".py" else ""
    if options.get("environment") or options.get("packages") or not header_of_script(text):
        return options
    among = config_file.hosts_of_call(parse_options({"host": options.get("host")}))
    if all(call.host.environment for call in among):
        why = 'does not count, as the host names an environment; use it with environment="script"'
        console.tell(f"the header of {script.name} (# /// script) {why}")
        return options
    console.tell(f"the environment is what the header of {script.name} names (# /// script)")
    return {**options, "environment": str(script)}


def _runner() -> Callable[..., Any]:
    """Return the function that a job calls."""

    def command(sent: Mapping[str, Any], names: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        # The function is pickled by value. In the job, the worker's own modules have this name.
        try:
            from _clusterfn.bridge.worker import command as worker  # type: ignore[import-not-found]
        except ImportError:
            raise RuntimeError('a command runs only in a job: call it, or use host="local"') from None
        return worker.run(sent, {**dict(zip(names, args)), **kwargs})

    return command


def _find_project(text: CommandText) -> tuple[tuple[str, ...], Path | None, Project | None]:
    """Return the words, with a script as the job finds it; that script; and the project.

    Raises:
        ConfigError: The script is missing, or cannot be run.
    """
    if text.line:
        named = _named_in(text.line)
        return (), None, project_of(named) if named else working_directory()
    first, *rest = text.words
    if is_script(first):
        script = _existing(first)
        with script.open("rb") as file:
            begins = file.read(4096)
        if script.suffix != ".py" and b"\r\n" in begins and not begins.startswith(b"\x7fELF"):
            problem = f"{script.name} has the line ends of Windows, with which no shell runs it"
            raise ConfigError(problem, hint=f"sed -i 's/\\r$//' {script.name}")
        project = project_of(script, script)
        relative = script.relative_to(Path(project)).as_posix()
        return (relative if relative.endswith(".py") else f"./{relative}", *rest), script, project
    for word in rest:
        if word.startswith("../") and Path(word).exists():
            hint = f"run the command from {Path(word).resolve().parent}, or a folder above both"
            raise ConfigError(f"{word} is outside of the project, so the job does not have it", hint=hint)
    own = _own_script(first, rest)
    named = own or _named_in(" ".join(rest))
    return text.words, own, project_of(named, own) if named else working_directory()


def _own_script(program: str, words: Sequence[str]) -> Path | None:
    """Return the script that an interpreter or a launcher is to run; None if it is none of this machine's.

    Raises:
        ConfigError: There is no such file.
    """
    if not _INTERPRETERS.fullmatch(os.path.basename(program)):
        return None
    word = next((name for name in words if name.endswith(SCRIPTS) and not name.startswith("-")), None)
    if word is None or PLACE.search(word) or os.path.isabs(word) or word.startswith("~"):
        return None
    return _existing(word)


def _named_in(line: str) -> Path | None:
    """Return the first file, folder or module of the working directory that a command names."""
    here = Path.cwd().resolve()
    for word in re.split(r"[\s|&;<>()$`\"'=]+", line):
        if word and not word.startswith(("-", "/", "~")):
            module = word.replace(".", "/")
            for path in (Path(word), Path(f"{module}.py"), Path(module, "__main__.py")):
                if path.exists() and here in path.resolve().parents:
                    return path.resolve()
    return None


def is_script(word: str) -> bool:
    """Whether the first word of a command is a script of this machine, and no program of the host."""
    # Unlike Path's, this function leaves the `~user` of a user whom only the host knows.
    path = Path(os.path.expanduser(word))
    if path.is_absolute():
        near = (Path.cwd().resolve(), Path.home().resolve())
        return path.is_file() and any(folder in path.resolve().parents for folder in near)
    return word.endswith(SCRIPTS) or word.startswith(("./", "../")) or ("/" in word and path.is_file())


def _existing(word: str) -> Path:
    path = places.expanded(word)
    if not path.is_file():
        others = [entry.name for entry in path.parent.iterdir() if entry.is_file()] if path.parent.is_dir() else []
        near = did_you_mean(path.name, others)
        raise ConfigError(f"there is no file {word}{near}", hint=f"the path is relative to {Path.cwd()}")
    return path.resolve()


def _reject_what_cannot_run(words: Sequence[str], options: Mapping[str, Any], is_line: bool, has_input: bool) -> None:
    program = os.path.basename(words[0])
    if words[0] in _OF_A_SHELL and not is_line:
        hint = f'put the whole command into one pair of quotes: "{" ".join(words)}"'
        raise ConfigError(f"{program} is a command of a shell, and no program", hint=hint)
    if program in ("sbatch", "qsub"):
        script = next((word for word in words[1:] if not word.startswith("-")), "job.sh")
        hint = f"clusterfn run {options.get('host') or 'HOST'} {script}: it reads the #SBATCH lines"
        raise ConfigError(f"{program} would start a second job from inside of this one", hint=hint)
    is_alone = program in _ALONE and not set(words[1:]) - {"-i", "-l", "--login"}
    if program in _ON_A_SCREEN or (is_alone and not has_input):
        hint = f"clusterfn shell {options.get('host') or 'HOST'}"
        raise ConfigError(f"{program} waits for a keyboard, and a job has none", hint=hint)
    if (options.get("nodes") or 1) > 1 and "--standalone" in words:
        hint = "leave out --standalone: clusterfn tells torchrun the address of the first node"
        raise ConfigError("--standalone is for one node, and the job has several", hint=hint)
    odd = next((word for word in words[1:] if _EXPANDED_THERE.match(word)), None)
    if odd and not is_line and "-c" not in words and program not in _OWN_DOLLARS:
        how = "put the whole command into one pair of quotes"
        console.tell(f"the command gets {odd} as it is; for the host's shell to replace it, {how}")


def _name_of(words: Sequence[str], line: str, script: Path | None) -> str:
    """Name the job by its script, its module, or its program."""
    if script is not None:
        return job_name(script.stem)
    first, *rest = words or line.split()
    if rest[:1] == ["-m"] and rest[1:]:
        return job_name(rest[1])
    named = next((word for word in [first, *rest] if word.endswith(SCRIPTS)), first)
    return job_name(Path(named).stem if named.endswith(SCRIPTS) else os.path.basename(named))
