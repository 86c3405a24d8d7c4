"""Run an environment's Python in a container: a script on the host is the interpreter, and enters the image.

`environment="apptainer:/images/pytorch.sif"` becomes such a script below the host's root. Supervisors, templates and
`clusterfn run` start it like any other interpreter. So a container adds no other way for a job to run.

Each runtime is a row of `RUNTIMES`: what one folder, the image and the rest of its command line look like. The facts
are from the manuals of Apptainer 1.4 (`apptainer exec`), Charliecloud 0.31 (`ch-run`) and bubblewrap 0.8 (`bwrap`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from clusterfn.bridge.layout import ENTERING_VARIABLE, IMAGE_VARIABLE
from clusterfn.errors import ConfigError
from clusterfn.scheduler.job_script import LEADING_VARIABLE, quote, quote_path

# The script that a missing runtime, image or folder ends says so behind this word; other failures are the runtime's.
REFUSED = "clusterfn: "
NOT_IN_PATH = "is not in PATH of the host"
_CANNOT_ENTER = '{"done": "environment", "message": "the image cannot be entered"}'
# What runtimes and the kernel say where a container cannot start, and what to do then.
HINTS = (
    ("namespace|uid map", "this account may not create user namespaces there: ask the administrator to allow it"),
    (
        "/dev/fuse|squashfuse",
        "this account may not mount images there: unpack it once, `apptainer build --sandbox FOLDER IMAGE.sif` on the "
        'host, and name the folder: "apptainer:/path/to/FOLDER"',
    ),
    ("format not recognized|image type", "name another file or folder, or the runtime that the image is for"),
    ("Unable to handle docker|registry", "the host cannot fetch it: pull it where you can, and name the file"),
    ("Exec format error|architecture", "the image is for another processor: get the one that `uname -m` there names"),
)
# Charliecloud and bubblewrap keep the host's PATH, in which another `python3` may come first.
_PATH = "/opt/conda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


# These signs separate folders and options on such a command line.
_NO_COLON = 'case $from$to in *[:,]*) refuse "the folder $from has a colon or a comma in its name" ;; esac'


class Runtime(NamedTuple):
    """How a container runtime is called, as lines of a POSIX shell that put their words before `"$@"`.

    Attributes:
        program: Its command.
        enter: The image, and the Python in it.
        bind: The folder `$from` of the host, as `$to` in the image.
        options: What comes before: the working directory, GPUs.
        binds_home: Whether it shows the home directory by itself.
        stays: Whether it stays as the parent, and gives the signal that ended the Python as a status.
    """

    program: str
    enter: str
    bind: str
    options: str
    binds_home: bool = False
    stays: bool = False


def _apptainer(program: str) -> Runtime:
    gpus = '[ ! -e /dev/nvidiactl ] || set -- --nv "$@"\n[ ! -e /dev/kfd ] || set -- --rocm "$@"'
    return Runtime(
        program,
        'set -- "$image" python3 "$@"',
        f'{_NO_COLON}\nset -- --bind "$from:$to" "$@"',
        # Without what it has to say of each `.sif`, which would be in the output of the function.
        f'{gpus}\nset -- --quiet exec --pwd "$PWD" "$@"',
        binds_home=True,
    )


RUNTIMES: Mapping[str, Runtime] = {
    "apptainer": _apptainer("apptainer"),
    "singularity": _apptainer("singularity"),
    "charliecloud": Runtime(
        "ch-run",
        f'set -- "$image" -- /usr/bin/env PATH={_PATH} python3 "$@"',
        f'{_NO_COLON}\nset -- --bind="$from:$to" "$@"',
        # A folder that the image lacks can be shown only where something may be written into it.
        'export USER="${USER:-$(id -un)}"\n'  # it does not start without
        "case $(ch-run --help 2>&1) in\n"
        '  *--write-fake*) set -- --write-fake "$@" ;;\n'
        '  *) [ ! -w "$image" ] || set -- --write "$@" ;;\n'
        "esac\n"
        'set -- --cd="$PWD" "$@"',
    ),
    "bwrap": Runtime(
        "bwrap",
        f'set -- --chdir "$PWD" /usr/bin/env PATH={_PATH} python3 "$@"',
        'set -- --bind "$from" "$to" "$@"',
        '[ -d "$image" ] || refuse "$image is a file, and bwrap enters a folder"\n'
        # The root is in memory, and has what is in the image. So folders that the image lacks can be shown in it.
        "for file in passwd group hosts resolv.conf; do\n"
        '  set -- --ro-bind-try "/etc/$file" "/etc/$file" "$@"\n'
        "done\n"
        "root=${image%/}\n"
        'for path in "$root"/* "$root"/home/* "$root"/opt/* "$root"/mnt/* "$root"/srv/*; do\n'
        '  to=${path#"$root"} from=$path\n'
        '  [ -e "$path" ] || [ -L "$path" ] || continue\n'
        "  case $to in /dev | /proc | /sys | /tmp | /home | /opt | /mnt | /srv) continue ;; esac\n"
        '  if [ -L "$path" ]; then kind=--symlink from=$(readlink "$path"); else kind=--ro-bind; fi\n'
        '  set -- "$kind" "$from" "$to" "$@"\n'
        "done\n"
        'set -- --dev-bind /dev /dev --proc /proc --ro-bind /sys /sys --bind /tmp /tmp "$@"',
        stays=True,
    ),
}
# The kind of environment that `container:` of the host enters.
CUSTOM = "container"
KINDS = (*RUNTIMES, CUSTOM)
IMAGE = "{image}"


def make_script(kind: str, image: str, command: Sequence[str], binds: Sequence[str], root: str) -> str:
    """Return the script that runs the Python of an image with the script's own arguments.

    Args:
        kind: A word of `KINDS`.
        image: A path as `quote_path` takes it, or what else the runtime takes, such as `docker://ubuntu`; in one line.
        command: For CUSTOM, the words of `container:`; `{image}` in them is the image.
        binds: Folders of the host, each as `FOLDER` or `FOLDER:FOLDER_IN_THE_IMAGE`.
        root: The host's root, which each job needs; "" if it is not known yet.

    Example:
        >>> print(make_script("container", "/i.sif", ["srun-in", "{image}"], [], ""))
        #!/bin/sh
        # environment="container:/i.sif": each argument goes to the Python of this image.
        export CLUSTERFN_PYTHON="$0"
        for word; do report=${last-} last=$word; done
        refuse() {
          echo "clusterfn: $1" >&2
          case ${report-} in
            "" | *[!0-9]*) ;;
            *) echo '{"done": "environment", "message": "the image cannot be entered"}' >"/dev/fd/$report" ;;
          esac
          exit 127
        }
        image=/i.sif
        export CLUSTERFN_IMAGE="$image"
        command -v srun-in >/dev/null 2>&1 || refuse 'srun-in is not in PATH of the host'
        [ -e "$image" ] || refuse "$image does not exist on the host"
        exec srun-in "$image" python3 "$@"
    """
    runtime = RUNTIMES.get(kind)
    program = runtime.program if runtime else command[0]
    is_path = image.startswith(("/", "~/", "$"))
    lines = [
        "#!/bin/sh",
        f'# environment="{kind}:{image}": each argument goes to the Python of this image.',
        f'export {ENTERING_VARIABLE}="$0"',
        # The supervisor's last two words to a worker are descriptors. The first one takes its report.
        "for word; do report=${last-} last=$word; done",
        "refuse() {",
        f'  echo "{REFUSED}$1" >&2',
        "  case ${report-} in",
        '    "" | *[!0-9]*) ;;',
        f"""    *) echo '{_CANNOT_ENTER}' >"/dev/fd/$report" ;;""",
        "  esac",
        "  exit 127",
        "}",
        *_set("image", (image.rstrip("/") or "/") if is_path else image),
        f'export {IMAGE_VARIABLE}="$image"',
        f"command -v {quote(program)} >/dev/null 2>&1 || refuse {quote(f'{program} {NOT_IN_PATH}')}",
    ]
    if is_path:
        lines.append('[ -e "$image" ] || refuse "$image does not exist on the host"')
    if runtime is None:
        words = " ".join('"$image"'.join(quote(part) if part else "" for part in word.split(IMAGE)) for word in command)
        return "\n".join([*lines, f'exec {words} python3 "$@"'])
    lines.append(runtime.enter)
    # The last one that is put before the others is mounted first: folders of the user come after those of clusterfn.
    for bind in reversed(binds):
        source, _, target = bind.partition(":")
        lines += [
            *_set("from", source),
            *_set("to", target or source),
            '[ -e "$from" ] || refuse "binds: names $from, which does not exist on the host"',
            runtime.bind,
        ]
    own = [quote_path(root)] if root else []
    own += ['"${TMPDIR:-}"'] + ([] if runtime.binds_home else ['"$HOME"'])
    lines += [
        f"for to in {' '.join(own)}; do",
        '  [ -d "$to" ] && from=$(cd "$to" && pwd -P) || continue',
        f"  {runtime.bind}",
        f'  [ "$to" = "$from" ] || {{ to=$from; {runtime.bind}; }}',
        "done",
        runtime.options,
        f'{program} "$@"\nstatus=$?\n[ $status -le 128 ] || kill -s $((status - 128)) $$\nexit $status'
        if runtime.stays
        else f'exec {program} "$@"',
    ]
    return "\n".join(lines)


def merge_binds(binds: Iterable[str]) -> tuple[str, ...]:
    """Return folders that an image shows, each once; raise ConfigError if two of them have one place in the image.

    Example:
        >>> merge_binds(["/data", "/scratch/ada:/mnt", "/data/:/data"])
        ('/data', '/scratch/ada:/mnt')
    """
    shown: dict[str, str] = {}
    for bind in binds:
        source, _, target = bind.partition(":")
        place, folder = ((path.rstrip("/") or "/") for path in (target or source, source))
        if shown.setdefault(place, folder) != folder:
            message = f"binds: an image cannot show both {shown[place]} and {folder} as {place}"
            raise ConfigError(message, hint="change the place of one: what `binds:` of the host names is shown too")
    return tuple(folder if folder == place else f"{folder}:{place}" for place, folder in shown.items())


def _set(variable: str, path: str) -> list[str]:
    """Return the lines that set a variable of the script to a path of the host."""
    begin = LEADING_VARIABLE.match(path)
    known = [f"[ -n \"${{{begin[2]}:-}}\" ] || refuse '{begin[0]} is not set on the host'"] if begin else []
    return [*known, f"{variable}={quote_path(path)}"]
