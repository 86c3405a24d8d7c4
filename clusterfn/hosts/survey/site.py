"""What a survey found, as dataclasses, and the best volume for `root:`. Sizes in bytes; None where unknown.

That is the home if it has plenty of room, because it is kept and backed up; else the volume with the most room. With
a scheduler the compute nodes must see it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clusterfn.scheduler.site import SchedulerSite

PLENTY_BYTES = 20 * 2**30
PLENTY_FILES = 200_000
_HOME = "$HOME"
_UNITS = (("TB", 2**40), ("GB", 2**30), ("MB", 2**20))


def proposed_root(volumes: Sequence[Volume], has_nodes: bool) -> tuple[Volume, str] | None:
    """Return the best volume and the reason; None if none can be used."""
    # clusterfn rejects a root in which every user could replace files, as `ls -l` shows it
    private = [each for each in volumes if each.mode[8:9] != "w" or each.mode[9:10] in ("t", "T")]
    usable = [each for each in private if each.writable and not each.noexec]
    shared = [each for each in usable if each.shared]
    home = next((each for each in usable if each.name == _HOME), None)
    if has_nodes and not shared:
        why = "none here is a network file system as far as its kind tells; compute nodes must see it"
        return (home, f"the home; {why}") if home else None
    candidates = shared if has_nodes else usable
    if home in candidates and home is not None:
        bytes_, files = home.room_bytes, home.room_files
        if (bytes_ is None or bytes_ >= PLENTY_BYTES) and (files is None or files >= PLENTY_FILES):
            return home, f"the home has plenty: {_room(home)}"
    best = max(candidates, key=_rank, default=None)
    if best is None:
        return None
    other = "" if home is None or best is home else f"; the home has {_room(home)}"
    return best, f"it has most room: {_room(best)}{other}"


def _rank(volume: Volume) -> tuple[bool, bool, int]:
    """Rank room for files above bytes, because an environment has 100 000 files; tmpfs is lost at the next boot."""
    files = volume.room_files
    return volume.kind != "tmpfs", files is None or files >= PLENTY_FILES, volume.room_bytes or 0


def _room(volume: Volume) -> str:
    files, amount, shown = volume.room_files, volume.room_bytes, "an unknown amount"
    if amount is not None:
        unit, length = next(((unit, length) for unit, length in _UNITS if amount >= length), ("KB", 1024))
        shown = f"{amount / length:.1f} {unit}"
    return shown if files is None else f"{shown} and {files} files"


@dataclass(frozen=True)
class Volume:
    """One folder in which a user could keep files, and its file system.

    Attributes:
        name: As the host names it: "$HOME", "$SCRATCH", "/scratch/ann".
        path: Absolute, resolved.
        kind: Of the file system: "nfs4", "lustre", "xfs", "tmpfs".
        free_bytes, free_files: What the file system has left.
        quota_bytes, quota_files: What the user's own quota leaves, where there is one.
        shared: Whether other machines see it, as far as its kind tells.
        noexec: Whether programs there cannot be started.
        writable: Whether this user may write there.
        device: What is mounted there: "/dev/sda1", "filer:/home".
        mode: As ls shows it: "drwx------".
        links: Whether a file there can have two names; None if none could be made to try.
    """

    name: str
    path: str
    kind: str
    free_bytes: int | None
    free_files: int | None
    quota_bytes: int | None = None
    quota_files: int | None = None
    shared: bool = False
    noexec: bool = False
    writable: bool = True
    device: str = ""
    mode: str = ""
    links: bool | None = None

    @property
    def room_bytes(self) -> int | None:
        """The bytes that can be written: the smaller of the two, None if neither is known."""
        return _smaller(self.free_bytes, self.quota_bytes)

    @property
    def room_files(self) -> int | None:
        """The files that can be made: the smaller of the two, None if neither is known."""
        return _smaller(self.free_files, self.quota_files)


def _smaller(*amounts: int | None) -> int | None:
    return min((each for each in amounts if each is not None), default=None)


@dataclass(frozen=True)
class SurveyedGpus:
    """The machine's own GPUs, or why nvidia-smi does not list them.

    Attributes:
        names: One for each GPU.
        memory_bytes: Of the smallest.
        trouble: What nvidia-smi said instead; "" if it answered.
    """

    names: tuple[str, ...] = ()
    memory_bytes: int = 0
    driver: str = ""
    capabilities: tuple[str, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class Site:
    """All that a survey found.

    Attributes:
        schedulers: By the word of `scheduler:`.
        cards: None where there is no nvidia-smi.
        modules: Whether `module` is a command of a login shell.
        lingering: Whether processes of the user outlive his logout; None where logind is not in charge.
        glibc: "2.17"; "" on another libc.
        conda: The path of a conda, mamba or micromamba; "" if there is none.
        root: The folder that is the host's root now, which is none of `volumes`; None if nothing could be learnt of it.
        silent: What did not answer in time: "cards", "$SCRATCH".
    """

    volumes: tuple[Volume, ...]
    schedulers: Mapping[str, SchedulerSite] = field(default_factory=dict)
    cards: SurveyedGpus | None = None
    modules: bool = False
    lingering: bool | None = None
    glibc: str = ""
    conda: str = ""
    root: Volume | None = None
    silent: tuple[str, ...] = ()

    @property
    def scheduler(self) -> str:
        """As clusterfn.yml writes it."""
        return next(iter(self.schedulers), "bare")

    def proposed_root(self) -> tuple[Volume, str] | None:
        """Return the best volume for `root:`, and why; None if none can be written to."""
        return proposed_root(self.volumes, bool(self.schedulers))
