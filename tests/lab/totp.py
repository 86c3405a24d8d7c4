"""One-time passwords for the host `totp`: its sshd asks PAM after the key, and PAM counts how often it was asked.

`up` calls install() before it starts the host; tests get a `Totp` as `lab.totp`. sshd looks for its PAM service under
the name it was started by, so a link to it has a service of its own and the machine's `sshd` service is not touched.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import struct
import time
from pathlib import Path

from .layout import SSHD, TOTP_SSHD
from .processes import State

STEP_S = 30
PAM_SERVICE = Path("/etc/pam.d") / TOTP_SSHD.name
SECRET = SSHD / "totp.secret"
ASKED = SSHD / "totp.asked"
COUNTER = SSHD / "totp-count"

# No DISALLOW_REUSE and no RATE_LIMIT: tests log in several times within one step. The window forgives one step.
OPTIONS = '" WINDOW_SIZE 3\n" TOTP_AUTH\n'
SERVICE = f"""\
auth required pam_exec.so quiet {COUNTER}
auth required pam_google_authenticator.so secret={SECRET} user=root noskewadj
account required pam_permit.so
session required pam_permit.so
"""


def code_at(secret: str, moment_s: float) -> str:
    """The six digits of RFC 6238 for a secret in base32."""
    digest = hmac.digest(base64.b32decode(secret), struct.pack(">Q", int(moment_s) // STEP_S), hashlib.sha1)
    start = digest[-1] & 15
    return f"{(int.from_bytes(digest[start : start + 4], 'big') & 0x7FFFFFFF) % 1_000_000:06}"


class Totp:
    """The second factor of host `totp`, the same for every account."""

    def code(self) -> str:
        """The code that is valid now; it may be used again."""
        return code_at(SECRET.read_text().split("\n", 1)[0], time.time())

    def prompts(self, account: str = "") -> int:
        """How often the host has asked for a code since the lab was built; of one account, if it is named."""
        asked = ASKED.read_text().splitlines()
        return asked.count(account) if account else len(asked)


def install(state: State) -> None:
    """The secret, the counter, the PAM service and the name that leads to it."""
    if not SECRET.exists():
        SECRET.touch(mode=0o600)
        SECRET.write_text(f"{base64.b32encode(secrets.token_bytes(20)).decode()}\n{OPTIONS}")
    ASKED.touch(mode=0o600)
    COUNTER.write_text(f'#!/bin/sh\nexec echo "$PAM_USER" >>{ASKED}\n')
    COUNTER.chmod(0o700)
    if not TOTP_SSHD.is_symlink():
        TOTP_SSHD.symlink_to("/usr/sbin/sshd")
    state.claim(PAM_SERVICE)
    PAM_SERVICE.write_text(SERVICE)
