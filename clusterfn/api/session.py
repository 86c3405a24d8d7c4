"""A session: GPUs, cores and an interpreter on a host, held for many calls, each in a process of its own.

On the host it is one job whose worker serves calls (`bridge/session`); here it is an Executor.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from clusterfn.api.decorator import IN_JOB_INSTEAD, inside_job, reject_generator, undecorated
from clusterfn.api.session_map import SessionMap, parse_size
from clusterfn.bridge.job_states import CANCELLED, DIED, RAISED
from clusterfn.bridge.supervisor.text import format_duration
from clusterfn.calls.call import host_of, prepare_held
from clusterfn.calls.job import Job, shown_to_end
from clusterfn.calls.session_call import ActorCall, actor_lost
from clusterfn.calls.session_job import SessionJob
from clusterfn.config import config_file, import_time
from clusterfn.config.job_spec import JobSpec, SessionSpec
from clusterfn.config.options import Hosts, JobOptions, Options, Time, keyword_of, parse_options
from clusterfn.config.units import exact_memory, exact_time, parse_time
from clusterfn.display import console
from clusterfn.display.notebook import NotebookDisplay
from clusterfn.errors import ConfigError
from clusterfn.hosts.host_state import CALLER
from clusterfn.packing.dependencies import NotEnded, as_lists
from clusterfn.public_api import check_arguments, public_api, show_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clusterfn.api.actor import Actor
    from clusterfn.calls.session_call import SessionCallJob

R = TypeVar("R")
# Waits that are shorter than this are not reported.
_MOMENT_S = 1.0
# The session must have at least as much of these as a call asks for. Its time ends all of its calls together.
_AMOUNTS = ("cores", "memory_bytes", "gpus", "time_s")
# The workers of a session share these.
_SHARED = ("cores", "memory_bytes", "gpus")
# A call may have these options of its own; all others are the session's.
_OF_EACH_CALL = ("host", "name", "on_interrupt")
_NO_OPTIONS = Options()
_SHOWN: dict[str, Callable[[Any], Any]] = {
    "memory_bytes": exact_memory,
    "gpu_memory_bytes": exact_memory,
    "time_s": exact_time,
    "stall_s": exact_time,
    "scheduler_options": lambda given: dict(*given.values()),
}


class Session(concurrent.futures.Executor, NotebookDisplay):
    """Hold GPUs, cores and an interpreter for many calls, which run one after another, or `workers` at a time.

    Each call has a process of its own, forked from an interpreter that has loaded what earlier calls used. It starts in
    milliseconds, and cannot affect the next call. The session releases its resources when you close it, or after
    `idle` without a call; the next call then starts it again, with a message.

    Args:
        host: The host's name in clusterfn.yml, or several as for `cluster`; None as for `cluster`.
        idle: End the session after this time without a call. Same format as `time`.
        workers: How many calls run at a time. They share the session's GPUs and cores equally, and its memory.
        options: As for `cluster`, for the session as a whole. `time` limits the session with all of its calls.
            Calls have no limit of their own: the session rejects a decorated function that asks for more.

    Raises:
        ConfigError: An option is unknown, or has the wrong type or unit; or the workers cannot share the GPUs equally.

    Example:
        >>> with clusterfn.Session("tensor01", gpus=1) as session:
        ...     first = session.call(train, 1e-3)
        ...     others = list(session.map(train, [1e-4, 1e-5]))
    """

    @public_api
    @show_options(JobOptions)
    def __init__(
        self, host: Hosts | None = None, *, idle: Time = "30min", workers: int = 1, **options: Unpack[JobOptions]
    ) -> None:
        self._options = parse_options({"host": host, **options})
        self._idle_s = parse_time(idle, "idle")
        self._workers = _parse_workers(workers, self._options)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._holding: SessionJob | None = None
        self._closed = False

    @property
    def job(self) -> Job[Any] | None:
        """The job that holds the GPUs; None before the first call."""
        return self._holding.job if self._holding else None

    @overload
    def call(self, fn: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, **kwargs: Any) -> R: ...
    @overload
    def call(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> R: ...
    @public_api
    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` in the session, show what it prints, and return its value or raise its exception.

        Ctrl-C ends the call; the session keeps running.
        """
        call = self._call(fn, args, kwargs, follow=True)
        return shown_to_end(call, _where(call, call.name), "stop")

    @overload
    def submit(self, fn: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, **kwargs: Any) -> Job[R]: ...
    @overload
    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Job[R]: ...
    @public_api
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Send `fn(*args, **kwargs)` to the session and return its Job.

        Raises:
            RuntimeError: After `shutdown`, or inside a job.
            ConfigError: It is a generator function, or decorated and asks for what the session does not have.
        """
        return self._call(fn, args, kwargs, follow=False)

    @overload
    def map(
        self, fn: Callable[..., Coroutine[Any, Any, R]], *iterables: Iterable[Any], timeout: float | None = None,
        chunksize: int = 1, buffersize: int | None = None,
    ) -> Iterator[R]: ...  # fmt: skip
    @overload
    def map(
        self, fn: Callable[..., R], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[R]: ...  # fmt: skip
    @public_api
    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None,
        chunksize: int = 1, buffersize: int | None = None,
    ) -> Iterator[Any]:  # fmt: skip
        """Send `fn(*each)` for each tuple of `zip(*iterables)`; the values in order, as they come.

        Each call has a process of its own. After an exception or a timeout, or if you stop iterating, clusterfn
        withdraws the calls that have not started. Those that run end by themselves.

        Args:
            fn: What to call.
            iterables: One for each argument. They are read at once, or as `buffersize` says.
            timeout: Seconds from now after which waiting for a value ends.
            chunksize: As for concurrent.futures. It changes nothing here: each call is sent by itself.
            buffersize: At most so many calls are sent whose values you have not taken, and the iterables are read as
                far. Give it for an endless generator, or for more items than fit into memory. None sends all at once.

        Raises:
            RuntimeError: After `shutdown`, or inside a job.
            ConfigError: A keyword is wrong; or as for `submit`.
            TimeoutError: Of the iterator: a value did not arrive in time.
            Exception: Of the iterator: what the call raised whose turn it is.

        Example:
            >>> with clusterfn.Session("tensor01", gpus=1) as session:
            ...     for score in session.map(evaluate, models, buffersize=100):
            ...         print(score)
        """
        parse_size("chunksize", chunksize)
        most = None if buffersize is None else parse_size("buffersize", buffersize)

        def send(*args: Any) -> Job[Any]:
            return self._call(fn, args, {}, follow=False)

        lists = as_lists(iterables, getattr(fn, "__name__", "the function"))
        return SessionMap(send, lists, timeout, most).values()

    @public_api
    def actor(self, cls: type, /, *args: Any, **kwargs: Any) -> Actor:
        """Construct `cls(*args, **kwargs)` once, in a process of the session that stays, and return it as an actor.

        Its methods run there, one after another: `model.predict(batch)`, or `model.predict.submit(batch)` for a Job.
        Use it for state that is costly to make, such as a model on a GPU. It has one of the session's workers until
        `close()`, with its share of GPUs and cores. If its process dies, later calls raise `ActorLost`. clusterfn does
        not construct the actor again by itself, because you would not notice that its state is lost.

        Args:
            cls: A class.
            args, kwargs: What it is constructed with.

        Raises:
            ConfigError: It is no class, or actors have all workers of the session. Nothing is sent.
            PayloadError: The class or an argument cannot be sent; the message names it.
            RuntimeError: After `shutdown`, or inside a job.
            Exception: What its `__init__` raises.

        Example:
            >>> with clusterfn.Session("tensor01", gpus=1) as session:
            ...     model = session.actor(Classifier, "weights.pt")
            ...     labels = model.predict(batch)
        """
        # Most sessions have no actors, and these imports take time.
        from clusterfn.api.actor import Actor, ActorClass

        kind = ActorClass(cls)
        kind.check_construction(args, kwargs)
        begins = ActorCall(0, kind.name)
        call = self._send(lambda holding: holding.send(cls, args, kwargs, kind.name, True, begins), Options())

        def send(
            function: Callable[..., Any],
            args: tuple[Any, ...],
            kwargs: Mapping[str, Any],
            of_actor: ActorCall,
            follow: bool,
        ) -> SessionCallJob[Any]:
            if self._closed:
                raise actor_lost(kind.name, "its session is closed", call.host, call.held.id)
            return self._send(
                lambda holding: holding.send(function, args, kwargs, of_actor.name, follow, of_actor),
                Options(),
                lambda: _check_actor(self._holding, call.held, of_actor.actor, kind.name),
            )

        def abandon(number: int) -> None:
            holding = self._holding
            if holding is not None and holding.job is call.held:
                holding.actors.abandon(number)

        try:
            shown_to_end(call, _where(call, f"{kind.name} as an actor"), "stop")
        except BaseException:  # a handler of a signal may raise anything
            # The caller gets no actor, although the session may construct it.
            if call.state not in (RAISED, DIED, CANCELLED):
                # An actor to which nothing refers is closed.
                Actor(kind, call, send, abandon)
            raise
        return Actor(kind, call, send, abandon)

    def _call(
        self, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any], follow: bool
    ) -> SessionCallJob[R]:
        plain, own = undecorated(fn)
        reject_generator(plain)
        check_arguments(plain, args, kwargs, "Session")
        return self._send(lambda holding: holding.send(plain, args, kwargs, own.name, follow), own)

    def _send(
        self,
        send: Callable[[SessionJob], SessionCallJob[R]],
        own: Options,
        holding: Callable[[], SessionJob] | None = None,
    ) -> SessionCallJob[R]:
        """Send a call with these options to the session's job, or to the one that `holding` returns."""
        if inside_job():
            import_time.reject_sending_in_job("a session", IN_JOB_INSTEAD)
        _reject_child(self._pid)
        while True:
            try:
                with self._lock:
                    if self._closed:
                        raise RuntimeError("cannot schedule new futures after shutdown: create another Session")
                    return send(holding() if holding is not None else self._going(own))
            except NotEnded as open_one:
                # Wait without the lock: other calls continue, and what this call waits for may be one of them.
                actors = [open_one.source.argument] if open_one.leaving else []
                if concurrent.futures.wait(actors, _MOMENT_S).not_done:
                    console.tell(f"waiting for the worker of the actor {open_one.leaving}, which is ending")
                open_one.source.await_end()

    def _going(self, options: Options) -> SessionJob:
        """Return the session's job; start it if it has not begun or has ended."""
        holding = self._holding
        if holding is not None and not holding.job.done():
            _refuse_what_it_lacks(options, self._options, holding.spec, self._workers)
            holding.close_unheld()
            return holding
        prepared = prepare_held(host_of(self._options._replace(name="session"), "session"))
        resources = prepared.job.resources
        if self._options.cores is None:
            resources = resources._replace(cores=max(resources.cores, self._workers))
        _refuse_what_it_lacks(options, self._options, prepared.job._replace(resources=resources), self._workers)
        if holding is not None:
            console.tell(f"the session on {holding.job.host} has ended ({holding.why_over}): starting another")
        serving = SessionSpec(self._idle_s, CALLER, self._workers)
        job = prepared.job._replace(serving=serving, resources=resources)
        self._holding = SessionJob(prepared._replace(job=job))
        return self._holding

    @public_api
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and release the GPUs once those that were taken have ended.

        In a forked child of the process that made the session, it does nothing.

        Args:
            wait: Whether to wait for that.
            cancel_futures: Whether to withdraw those that have not started.
        """
        # A forked child that leaves the `with` block must not end the session of its parent.
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            holding = self._holding
        if holding is None:
            return
        holding.close(wait, cancel_futures)

    @public_api
    def stop(self) -> None:
        """End the session and its running calls, and wait until they have ended. Waiting calls raise `Cancelled`.

        The next call starts the session again.

        Raises:
            RuntimeError: This process is a forked child of the one that made the session.
        """
        _reject_child(self._pid)
        if self._holding is not None:
            self._holding.job.stop()
            self._holding.await_end()

    @public_api
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        interrupted = isinstance(error, KeyboardInterrupt)
        if isinstance(error, Exception) and self._holding is not None and os.getpid() == self._pid:
            self._holding.tell_of_error(error)
        self.shutdown(wait=not interrupted, cancel_futures=interrupted)

    async def __aenter__(self) -> Session:
        return self

    @public_api
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.get_running_loop().run_in_executor(None, self.__exit__, kind, error, traceback)

    def _shown_lines(self) -> list[str]:
        if self.job is None:
            return ["session: not begun", "  its first call starts it"]
        return self.job._shown_lines("session", f"ends after {format_duration(self._idle_s)} without a call")

    def _may_change(self) -> bool:
        return self.job is not None and not self.job.done()

    def __repr__(self) -> str:
        return f"<Session {self.job.id} on {self.job.host}: {self.job.status}>" if self.job else "<Session: unused>"


def _reject_child(pid: int) -> None:
    """Reject a forked child: its parent numbers the calls, and the host takes each number once."""
    if os.getpid() != pid:
        forked = f"process {os.getpid()} was forked from it: make a Session here"
        raise RuntimeError(f"this Session belongs to process {pid}, and {forked}")


def _check_actor(holding: SessionJob | None, held: Job[Any], actor: int, name: str) -> SessionJob:
    """Return the session's job if it is the one that has the actor.

    Raises:
        ActorLost: The actor is gone, or its job has ended. A session that starts again has no actors.
    """
    if holding is None or holding.job is not held or held.done():
        why = f" ({holding.why_over})" if holding is not None and holding.job is held else ""
        raise actor_lost(name, f"its session has ended{why}", held.host, held.id)
    holding.actors.check(actor, name)
    return holding


def _where(call: SessionCallJob[Any], what: str) -> str:
    """Say what runs where at the first call of a session; "" for the others, of which there may be thousands."""
    return f"{what} in a session on {call.host}" if call.run.at.number == 1 else ""


def _parse_workers(workers: object, options: Options) -> int:
    """Return how many calls run at a time.

    Raises:
        ConfigError: That is no such number, or they cannot share what the session asks for.
    """
    if type(workers) is not int or workers < 1:
        raise ConfigError(f"workers={workers!r} is not a number of workers", hint="use 1, 2, 3, …")
    if options.gpus and options.gpus % workers:
        hint = f"give each worker one GPU: gpus={workers}"
        raise ConfigError(f"workers={workers} cannot share gpus={options.gpus} equally", hint=hint)
    if options.cores is not None and options.cores < workers:
        hint = f"give each worker at least one core: cores={workers}"
        raise ConfigError(f"workers={workers} cannot share cores={options.cores}", hint=hint)
    return workers


def _refuse_what_it_lacks(options: Options, own: Options, session: JobSpec, workers: int) -> None:
    """Reject a decorated function that asks for what the session, or one of its workers, does not have."""
    if options == _NO_OPTIONS:
        return
    for name in _AMOUNTS:
        requested, held = getattr(options, name), getattr(session.resources, name)
        if workers > 1 and name in _SHARED and held is not None:
            held //= workers
        if requested is not None and held is not None and requested > held:
            is_shared = workers > 1 and name in _SHARED
            raise _lacks(name, requested, held, "each worker of the session" if is_shared else "the session")
    if options.host is not None and session.host.name not in config_file.load().names_of(options.host):
        raise _lacks("host", options.host, session.host.name)
    for name, silent in _NO_OPTIONS._asdict().items():
        requested = getattr(options, name)
        if name not in (*_AMOUNTS, *_OF_EACH_CALL) and requested not in (silent, getattr(own, name)):
            word, hint = keyword_of(name), "send the undecorated function: session.call(f.__wrapped__, …)"
            why = "which only a whole job can have"
            if word in JobOptions.__annotations__:
                why, hint = "which the Session was not given", f"Session({word}=…, …), or {hint}"
            raise ConfigError(f"the function asks for {word}={_shown(name, requested)}, {why}", hint=hint)


def _lacks(name: str, requested: Any, held: Any, whose: str = "the session") -> ConfigError:
    word = keyword_of(name)
    problem = f"the function asks for {word}={_shown(name, requested)}, {whose} has {_shown(name, held)}"
    hint = f"give the session {word}=…, or send the undecorated function: session.call(f.__wrapped__, …)"
    return ConfigError(problem, hint=hint)


def _shown(name: str, value: Any) -> str:
    return repr(_SHOWN[name](value) if name in _SHOWN else value)
