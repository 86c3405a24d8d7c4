"""Start ipykernel as a program, without the debugger, without a TCP port, and so that it drops no output by itself.

The holder limits the output instead. What is changed are private names of ipykernel: where one is missing, ipykernel
stays as it is.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PIPE = "pipe"


def launch() -> None:
    """Change ipykernel, and run it."""
    from ipykernel import debugger, iostream, kernelapp  # type: ignore[import-not-found,import-untyped,unused-ignore]

    if hasattr(debugger, "_is_debugpy_available"):
        # The debugger would open ports without a password.
        debugger._is_debugpy_available = False
    _keep_all_output(kernelapp.IPKernelApp)
    _carry_output_of_forks_by_file(iostream.IOPubThread)
    kernelapp.launch_new_instance()


def _keep_all_output(app: "Any") -> None:
    """Lift the limit of 1000 messages, above which ZeroMQ drops what is published."""
    init_iopub = app.init_iopub

    def init_without_limit(self: "Any", context: "Any") -> None:
        # A context passes this limit on to each socket that it makes from now on.
        context.sndhwm = 0
        try:
            init_iopub(self, context)
        finally:
            del context.sndhwm

    app.init_iopub = init_without_limit


def _carry_output_of_forks_by_file(thread: "Any") -> None:
    """Let forked processes send their output through a unix socket next to the kernel's own, and not by TCP."""
    if not all(hasattr(thread, name) for name in ("_setup_pipe_in", "_setup_pipe_out", "_handle_pipe_msg")):
        return
    import zmq  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from zmq.eventloop.zmqstream import ZMQStream  # type: ignore[import-not-found,import-untyped,unused-ignore]

    address = "ipc://" + os.path.join(os.path.dirname(sys.argv[-1]), _PIPE)

    def setup_pipe_in(self: "Any") -> None:
        self._pipe_uuid = os.urandom(16)
        pipe = self.socket.context.socket(zmq.PULL)
        pipe.linger = 0
        pipe.bind(address)
        self._pipe_in = ZMQStream(pipe, self.io_loop)
        self._pipe_in.on_recv(self._handle_pipe_msg)

    def setup_pipe_out(self: "Any") -> "Any":
        # A context of ZeroMQ does not survive a fork, so the child needs its own.
        context = zmq.Context()
        pipe = context.socket(zmq.PUSH)
        # A forked process may end at once; ZeroMQ then has three seconds to deliver its last output.
        pipe.linger = 3000
        pipe.connect(address)
        return context, pipe

    thread._setup_pipe_in, thread._setup_pipe_out = setup_pipe_in, setup_pipe_out


if __name__ == "__main__":
    # Python put the folder of this file there, whose modules must not hide those of the user.
    del sys.path[0]
    launch()
