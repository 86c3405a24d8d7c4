"""How a command ends that shows something until it is ended: by a key, or by a signal."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

from clusterfn.display import console
from clusterfn.hosts.transports import prompts

_ENDING = re.compile(rb"[qQ\033]")
# An arrow, for example, also begins with Esc.
_OTHER_KEYS = re.compile(rb"\033[\[O][0-9;]*[@-~]")
_LOOK_S = 0.2
# Shells add the number of the signal that ended a program to this.
_ENDED_BY_SIGNAL = 128


if sys.platform == "win32":

    @contextlib.contextmanager
    def ended_by_key() -> Iterator[None]:
        """Leave the keys of Windows to Ctrl-C."""
        yield

else:
    import termios
    import tty

    @contextlib.contextmanager
    def ended_by_key() -> Iterator[None]:
        """End the block at `q` or Esc on the terminal, as at Ctrl-C, but without an error.

        Questions about a login come first: what is typed then is the answer.
        """
        if not (console.is_terminal(sys.stdout) and _is_read_here()):
            yield
            return
        fd = sys.stdin.fileno()
        reader = threading.get_ident()
        is_pressed, is_over = threading.Event(), threading.Event()

        def read() -> None:
            while not is_over.wait(_LOOK_S):
                if prompts.is_asking() or not select.select([fd], [], [], 0)[0]:
                    continue
                if _ENDING.search(_OTHER_KEYS.sub(b"", os.read(fd, 64))):
                    is_pressed.set()
                    # Only a signal to this very thread wakes it from every wait.
                    signal.pthread_kill(reader, signal.SIGINT)
                    return

        before = termios.tcgetattr(fd)
        tty.setcbreak(fd)
        threading.Thread(target=read, daemon=True).start()
        try:
            with ending_is_an_exception():
                yield
        except KeyboardInterrupt:
            if not is_pressed.is_set():
                raise
        finally:
            is_over.set()
            termios.tcsetattr(fd, termios.TCSADRAIN, before)

    def _is_read_here() -> bool:
        """Whether a terminal is standard input, and this process is in its foreground: else reading would stop it."""
        try:
            return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
        except (AttributeError, OSError, ValueError):
            return False


@contextlib.contextmanager
def ending_is_an_exception() -> Iterator[None]:
    """SIGTERM and a closed terminal end the command as Ctrl-C does: what it has started on the host is withdrawn."""

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(_ENDED_BY_SIGNAL + number)

    # Python sets signal handlers only in the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is signal.SIG_DFL:
            # Leave a signal alone that is ignored, as nohup ignores SIGHUP.
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, handler)
