"""The requests that a host answers: files, programs and sockets there. Each gives a `Reply`, and waits for nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.errors import HostError
from clusterfn.hosts.rpc import requests as _r
from clusterfn.hosts.rpc.file_requests import Data, GetRequest, SendAgain, UploadRequest, size_of
from clusterfn.hosts.rpc.reply import Reply

if TYPE_CHECKING:
    from clusterfn.hosts.rpc.frames import Header
    from clusterfn.hosts.rpc.link import Link


class Completed(NamedTuple):
    """How a program ended: `rc`, or None and the `signal` that ended it; and all that it printed."""

    rc: int | None
    signal: int | None
    out: bytes
    err: bytes


class TreeFile(NamedTuple):
    """One file of `put_tree`: its name below the folder, with slashes, and its bytes or the local file with them.

    Attributes:
        crc: The CRC-32 that its bytes must have when they come; None checks nothing.
    """

    name: str
    data: Data
    mode: int = 0o600
    crc: int | None = None


class Needed(NamedTuple):
    """What a folder needs beside it on the host.

    Attributes:
        paths: Absolute.
        whole: Those of them that are trees with a list of their files, `MANIFEST`, by which they are checked.
        send_again: Sends those that are gone once more, in the loop; returns the error if that has failed.
    """

    paths: Sequence[str]
    whole: Sequence[str]
    send_again: SendAgain


class ListedFile(NamedTuple):
    """One file found by `list`; `mtime` is the host's clock."""

    name: str
    size: int
    mtime: float
    mode: int


class HostRequests:
    """The requests to one host. All methods may be called from any thread; callbacks come on the reader thread."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def _send(self, request: _r.OpenRequest[_r.T]) -> Reply[_r.T]:
        self.link.ask(request)
        return request.reply

    def put(
        self,
        path: str,
        data: Data,
        mode: int = 0o600,
        crc: int | None = None,
        *,
        sync: bool = True,
        after: Sequence[Reply[Any]] = (),
    ) -> Reply[bool]:
        """Write a file: whole or not at all. True if it was written, False if it was there and is named by its content.

        Args:
            sync: Whether it must survive a power cut from then on.
            crc: The CRC-32 of the content that the file is named by, which what comes must have; None for other files.
        """
        fields: Header = {"path": path, "size": size_of(data), "mode": mode, "sync": sync}
        if crc is not None:
            fields["crc"] = crc
        return self._send(UploadRequest(fields, _written, [data], after))

    def put_tree(
        self,
        path: str,
        files: Sequence[TreeFile],
        *,
        sync: bool = True,
        after: Sequence[Reply[Any]] = (),
        needs: Needed | None = None,
        folders: Sequence[str] = (),
        links: Sequence[tuple[str, str]] = (),
    ) -> Reply[bool]:
        """Write a folder: whole or not at all. True if it was written, False if it was there.

        Args:
            folders: Names of further folders in it.
            links: Names of links in it, and where they lead.
            sync: Whether it must survive a power cut. Not needed for what is useless after one.
            needs: What must be there before.
        """
        names = [
            [file.name, size_of(file.data), file.mode, *(() if file.crc is None else (file.crc,))] for file in files
        ]
        fields: Header = {"path": path, "files": names, "sync": sync}
        fields.update({key: value for key, value in (("folders", folders), ("links", links)) if value})
        data = [file.data for file in files]
        if needs is None:
            return self._send(UploadRequest(fields, _written, data, after))
        fields.update(needs=list(needs.paths), whole=list(needs.whole))
        return self._send(UploadRequest(fields, _written, data, after, needs.send_again))

    def have(self, paths: Sequence[str]) -> Reply[list[bool]]:
        """Whether each path exists."""

        def read(header: Header, _: bytes) -> list[bool]:
            answers = header.get("have")
            kinds = [type(answer) for answer in answers] if isinstance(answers, list) else None
            if kinds != [bool] * len(paths):
                raise _r.MalformedAnswer(f"have: {ascii(answers)[:80]}, for {len(paths)} paths")
            return list(answers or ())

        return self._send(_r.SimpleRequest("have", {"paths": list(paths)}, read))

    def get(
        self,
        path: str,
        sink: _r.Sink,
        offset: int = 0,
        *,
        on_size: Callable[[int], Any] | None = None,
        until: int | None = None,
    ) -> Reply[int]:
        """Give a file's bytes from `offset` to `sink`; the reply is the file's size.

        Args:
            until: Where the part of the file ends that is wanted; its size then counts as the file's.
            on_size: Called with the file's size before its first byte comes; what it raises ends the request.
        """
        return self._send(GetRequest(path, sink, offset, on_size, until))

    def follow(
        self,
        files: Sequence[_r.Followed],
        until: str = "",
        with_files: Sequence[tuple[str, _r.Sink]] = (),
        *,
        on_content: Callable[[bytes], Any] | None = None,
    ) -> Reply[bytes]:
        """Give bytes of files as they grow. Once the file `until` exists, give the rest of them, and return its bytes.

        Without `until`, it ends by `cancel`.

        Args:
            with_files: What comes with `until`, and where it goes.
            on_content: Called with the bytes of `until` before those of `with_files`; what it raises ends the request.
        """
        return self._send(_r.FollowRequest(files, until, with_files, on_content))

    def wait(self, path: str) -> Reply[bytes]:
        """Return a file's bytes once it exists."""
        return self.follow((), path)

    def still(
        self,
        path: str,
        silent_s: float,
        on_silent: Callable[[], Any],
        *,
        unless: str = "",
        within: str = "",
        on_gone: Callable[[], Any] = lambda: None,
        after: Sequence[Reply[Any]] = (),
    ) -> Reply[None]:
        """Call `on_silent` each time a file has not changed for `silent_s`, once it exists; until `cancel`.

        Args:
            unless: What explains the silence, once it exists.
            within: The folder without which the file can never be made.
            on_gone: Called each time that there was no such folder for `silent_s`.
        """
        fields = {"still": {"path": path, "silent_s": silent_s, "unless": unless, "within": within}}

        def report(header: Header, _: bytes) -> None:
            (on_gone if header.get("gone") else on_silent)()

        return self._send(_r.SimpleRequest("follow", fields, lambda *_: None, after=after, take=report))

    def run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        cwd: str | None = None,
        unset: Sequence[str] = (),
        timeout_s: float = 60,
        *,
        after: Sequence[Reply[Any]] = (),
        forks: bool = False,
        stop_at: str = "",
    ) -> Reply[Completed]:
        """Run a program to its end. It may run twice if the connection breaks, so it must bear that.

        Args:
            forks: Whether it is `supervise.py`, and may run in a fork of the agent: that saves an interpreter's start.
            stop_at: Kill it once it has printed this to stderr.

        Raises (by the reply):
            HostError: It does not exist, may not be run, was killed after `timeout_s`, or printed more than 4 MB.
        """
        more: Header = {**({"fork": True} if forks else {}), **({"stop_at": stop_at} if stop_at else {})}
        fields = {**_program(argv, unset), "cwd": cwd, "timeout_s": timeout_s, **more}
        read = functools.partial(_completed, self.link.host.name, argv)
        return self._send(_r.SimpleRequest("run", fields, read, stdin, after))

    def spawn(
        self,
        argv: Sequence[str],
        cwd: str,
        log: str,
        unset: Sequence[str] = (),
        *,
        after: Sequence[Reply[Any]] = (),
        template: Mapping[str, Any] | None = None,
    ) -> _r.SpawnReply:
        """Start a program that outlives this connection; `reply.exited` reports its end as long as the agent runs.

        Args:
            template: If it is job.sh, the fields of its `Template`, with which the job may be forked.
        """
        more = {"template": dict(template)} if template else {}
        fields = {**_program(argv, unset), "cwd": cwd, "log": log, **more}
        request = _r.SpawnRequest("spawn", fields, after=after)
        self.link.ask(request)
        return request.reply

    def repeat(
        self,
        argv: Sequence[str],
        interval_s: float,
        on_look: Callable[[_r.CommandLook], Any],
        unset: Sequence[str] = (),
        *,
        delay_s: float = 0.0,
    ) -> Reply[None]:
        """Run a program after `delay_s` and then every `interval_s`, until `cancel`."""
        fields = {**_program(argv, unset), "interval_s": interval_s, "delay_s": delay_s, "timeout_s": 60}
        return self._send(_r.RepeatRequest(fields, on_look))

    def connect_socket(self, path: str, first: bytes, on_data: Callable[[bytes], Any]) -> Reply[None]:
        """Connect to a unix socket of this user on the host, and send the `first` bytes; `on_data` gets what it says.

        The reply comes when the socket is closed, and raises Unreachable when the connection to the host is lost: it
        is not connected again. `cancel` closes it.
        """
        return self._send(_r.ConversationRequest({"path": path}, first, on_data))

    def converse(
        self,
        argv: Sequence[str],
        first: bytes,
        on_data: Callable[[bytes], Any],
        unset: Sequence[str] = (),
        nudge: bytes = b"",
    ) -> Reply[None]:
        """Start a program on the host as `connect_socket` connects: `write` goes to its stdin, and its stdout comes.

        It ends with the connection, or by `cancel`. If its exit status is not 0, the reply raises a HostError with its
        last words. Its kind is "unavailable" for EX_UNAVAILABLE, and "program" for all others.

        Args:
            nudge: What its input gets while srun brings its output in pieces, which come sooner so. It comes between
                the data of two calls of `write`, never inside. ASCII, and nothing that the program acts on.
        """
        fields = {**_program(argv, unset), **({"nudge": nudge.decode("ascii")} if nudge else {})}
        return self._send(_r.ConversationRequest(fields, first, on_data))

    def write(self, connected: Reply[None], data: bytes) -> None:
        """Send bytes to a socket or a program, after an answer to the first; they are lost if it is gone."""
        self.link.write(connected, data)

    def ping(self) -> Reply[None]:
        """Ask for an answer, as soon as the host can."""
        return self._send(_r.SimpleRequest("have", {"paths": []}, lambda *_: None))

    def list(self, path: str, glob: str = "**", limit: int = 10_000) -> Reply[list[ListedFile]]:
        """List files below a folder whose relative name matches: `*` stays within one name, `**` crosses folders."""
        fields = {"path": path, "glob": glob, "limit": limit}
        return self._send(_r.SimpleRequest("have", fields, functools.partial(_listed, self.link.host.name, path)))


def _program(argv: Sequence[str], unset: Sequence[str]) -> Header:
    return {"argv": list(argv), "unset": list(unset)}


def _written(header: Header, _: bytes) -> bool:
    return not header.get("existed")


def _completed(host: str, argv: Sequence[str], header: Header, body: bytes) -> Completed:
    """Read how a program ended. An answer that was cut off is an error: its end is missing."""
    rc, signal = (None if header.get(name) is None else _r.number(header, name) for name in ("rc", "signal"))
    out = _r.number(header, "out", below=len(body) + 1)
    if _r.boolean(header, "truncated"):
        raise HostError(
            f"`{argv[0]}` printed more than the 4 MB that clusterfn reads",
            host=host,
            evidence=body[:out][-200:].decode("utf-8", "replace").splitlines()[-1:],
        )
    return Completed(rc, signal, body[:out], body[out:])


def _listed(host: str, path: str, header: Header, _: bytes) -> list[ListedFile]:
    entries = header.get("files")
    listed = entries if isinstance(entries, list) else [None]
    rows = [entry if isinstance(entry, list) else [] for entry in listed]
    # JSON may write a whole number of seconds without a fraction, so a time may come as an int.
    kinds = ([str, int, float, int], [str, int, int, int])
    if any([type(cell) for cell in row] not in kinds or row[1] < 0 for row in rows):
        raise _r.MalformedAnswer(f"files: {ascii(entries)[:80]}")
    if _r.boolean(header, "truncated"):
        raise HostError(
            f"{path} has more files that match than the {len(rows)} that fit into one answer",
            host=host,
            hint="use a narrower pattern, or pack them into one file on the host",
        )
    return [ListedFile(*row) for row in rows]
