"""Addresses of archives: the path of a local one, and how to show one without its password. Imports no network."""

import os
import re
import urllib.parse


def local_path(url: str) -> str:
    """Return the path of a file:// address; "" for others."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "file":
        return ""
    if os.name == "nt":
        from urllib.request import url2pathname  # takes time to import

        return url2pathname(parts.path)
    return urllib.parse.unquote(parts.path)


def masked(url: str) -> str:
    """Return an address without its password and without the token of a channel, so that it can be shown."""
    return re.sub(r"/t/[^/\s]+/", "/t/***/", re.sub(r"://[^/\s]*@", "://***@", url))
