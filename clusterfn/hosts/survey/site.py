"""What a survey has found, in dataclasses. Sizes in bytes; None where the host cannot say."""

from __future__ import annotations

from dataclasses import dataclass

from clusterfn.hosts.survey import proposal


@dataclass(frozen=True)
class Volume:
    """One folder in which a user could keep his files, and the file system that it lies on.

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
        """What can be written there: the smaller of the two, None if neither is known."""
        return _smaller(self.free_bytes, self.quota_bytes)

    @property
    def room_files(self) -> int | None:
        """How many files can be made there: the smaller of the two, None if neither is known."""
        return _smaller(self.free_files, self.quota_files)


def _smaller(*amounts: int | None) -> int | None:
    return min((each for each in amounts if each is not None), default=None)


@dataclass(frozen=True)
class Partition:
    """One partition of SLURM, as sinfo has it. `state` is "up" where jobs start."""

    name: str
    default: bool
    state: str
    time_limit: str
    nodes: int
    gres: str


@dataclass(frozen=True)
class Account:
    """One association of the user, as sacctmgr has it."""

    name: str
    partition: str
    qos: tuple[str, ...]


@dataclass(frozen=True)
class Cards:
    """The machine's own cards, or why nvidia-smi does not say.

    Attributes:
        names: One for each card.
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
    """All of it.

    Attributes:
        partitions: None where there is no sinfo; empty with `trouble` set where it failed.
        trouble: What sinfo said instead of partitions.
        limits: What SLURM bounds or demands: "MaxArraySize=1001", "account physics: MaxJobs=10".
        cards: None where there is no nvidia-smi.
        modules: Whether `module` is a command of a login shell.
        lingering: Whether processes of the user outlive his logout; None where logind is not in charge.
        glibc: "2.17"; "" on another libc.
        conda: The path of a conda, mamba or micromamba; "" if there is none.
        root: The folder that is the host's root now, which is none of `volumes`; None if nothing could be learnt of it.
        silent: What did not answer in time: "cards", "$SCRATCH".
    """

    volumes: tuple[Volume, ...]
    partitions: tuple[Partition, ...] | None = None
    accounts: tuple[Account, ...] = ()
    limits: tuple[str, ...] = ()
    trouble: str = ""
    cards: Cards | None = None
    modules: bool = False
    lingering: bool | None = None
    glibc: str = ""
    conda: str = ""
    root: Volume | None = None
    silent: tuple[str, ...] = ()

    @property
    def scheduler(self) -> str:
        """As clusterfn.yml writes it."""
        return "bare" if self.partitions is None else "slurm"

    def proposed_root(self) -> tuple[Volume, str] | None:
        """The volume that suits `root:` best, and why in words; None if there is none to write to."""
        return proposal.proposed_root(self.volumes, self.partitions is not None)
