"""Make the folder of a kernel's sockets: private to this user, and with a path that is short enough for them."""

import os
import shutil
import socket
import tempfile

SOCKET, _PREFIX = "s", "clusterfn-kernel-"


def make_private_folder() -> str:
    """Make a private folder with a short path on a disk of this machine; remove those of holders that were killed."""
    place = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else tempfile.gettempdir()
    for name in os.listdir(place):
        folder = os.path.join(place, name)
        try:
            if name.startswith(_PREFIX) and os.stat(folder).st_uid == os.geteuid() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # another holder has removed it
            continue
    return tempfile.mkdtemp(prefix=_PREFIX, dir=place)


def _is_abandoned(folder: str) -> bool:
    """Whether nothing listens at its socket. One that does not exist yet may appear in a moment."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        sock.connect(os.path.join(folder, SOCKET))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    finally:
        sock.close()
    return False
