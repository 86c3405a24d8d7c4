"""Find out within five seconds whether servers answer, before a solver is installed that would need them.

Each server is asked once in a minute, all at the same time. Any answer counts, a refusal too.
"""

from __future__ import annotations

import functools
import http.client
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from clusterfn.bridge.builder.fetch import local_path, make_request, masked

ANSWER_S = 5.0
_KNOWN_S = 60.0


def why_unreachable(urls: Sequence[str], proxies: Mapping[str, str]) -> str:
    """Say which of several servers does not answer, and why; "" if all of them do.

    Args:
        proxies: By the scheme of an address, in addition to those of this process's variables.
    """
    through, minute = tuple(sorted(proxies.items())), int(time.monotonic() / _KNOWN_S)
    asked = [(url, _asked(url, through, minute)) for url in urls if not local_path(url)]
    due = time.monotonic() + ANSWER_S
    for url, (thread, answer) in asked:
        thread.join(max(0.0, due - time.monotonic()))
        why = answer[0] if answer else f"no answer within {ANSWER_S:.0f} s"
        if why:
            return f"{urlsplit(masked(url)).netloc.rpartition('@')[2]}: {why}"
    return ""


@functools.lru_cache(maxsize=32)
def _asked(url: str, proxies: tuple[tuple[str, str], ...], minute: int) -> tuple[threading.Thread, list[str]]:
    """Begin to ask a server; its answer comes into the list."""
    answer: list[str] = []
    ask = urllib.request.build_opener(urllib.request.ProxyHandler({**dict(proxies), **urllib.request.getproxies()}))
    thread = threading.Thread(target=lambda: answer.append(_answer(url, ask)), name="clusterfn-reach", daemon=True)
    thread.start()
    return thread, answer


def _answer(url: str, ask: urllib.request.OpenerDirector) -> str:
    request = make_request(url, 0)
    request.method = "HEAD"
    try:
        ask.open(request, timeout=ANSWER_S).close()
    except urllib.error.HTTPError as error:
        error.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        return "" if isinstance(reason, ssl.SSLError) else str(reason)  # conda may trust other certificates
    return ""
