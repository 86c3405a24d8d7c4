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
        refuse_other_user(sock)  # the file may have been another's in between
    except OSError as error:
        os.write(2, os.fsencode("%s on %s: %s\n" % (path, os.uname()[1], error)))
        return os.EX_UNAVAILABLE  # by which the client knows that it need not try again
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
    if hasattr(socket, "SO_PEERCRED"):  # of Linux
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
    except OSError:  # the holder has closed it: the other thread reads what it has said before
        return


def write_all(data: bytes) -> None:
    """Write to stdout."""
    remaining = memoryview(data)
    while len(remaining):
        remaining = remaining[os.write(1, remaining) :]


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))  # the other thread may wait in a read
