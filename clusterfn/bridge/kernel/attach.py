"""Join stdin and stdout to the socket of a kernel's holder: what a scheduler starts next to the holder, on its node.

Runs by itself, as `python attach.py SOCKET`; it ends when either side closes.
"""

import os
import socket
import struct
import sys
import threading

READ_BYTES = 64 * 1024


def main(path: str) -> int:
    """Carry the bytes; return the exit status."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.stat(path).st_uid != os.geteuid():
            raise PermissionError("it belongs to another user")
        sock.connect(path)
        # Another user may have replaced the file between `stat` and `connect`.
        refuse_other_user(sock)
    except OSError as error:
        os.write(2, os.fsencode("%s on %s: %s\n" % (path, os.uname()[1], error)))
        # This status tells the client that a further try is useless.
        return os.EX_UNAVAILABLE
    sending = threading.Thread(target=send_input, args=(sock,))
    sending.daemon = True
    sending.start()
    try:
        while True:
            data = sock.recv(READ_BYTES)
            if not data:
                break
            write_all(data)
    except (ConnectionResetError, BrokenPipeError):
        pass
    return 0


def refuse_other_user(sock: socket.socket) -> None:
    """Raise PermissionError if another user's process listens there."""
    # Only Linux can tell which user listens.
    if hasattr(socket, "SO_PEERCRED"):
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        if uid != os.geteuid():
            raise PermissionError("a process of another user listens there")


def send_input(sock: socket.socket) -> None:
    """Send all of stdin; at its end close the socket, by which the other thread ends too."""
    try:
        while True:
            data = os.read(0, READ_BYTES)
            if not data:
                break
            sock.sendall(data)
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The holder has closed the socket. The main thread still reads what it sent before.
        return


def write_all(data: bytes) -> None:
    """Write to stdout."""
    remaining = memoryview(data)
    while len(remaining):
        remaining = remaining[os.write(1, remaining) :]


if __name__ == "__main__":
    # The other thread may still be blocked in a read of stdin, so the interpreter does not shut down in the usual way.
    os._exit(main(sys.argv[1]))
