"""Answer, with py-rattler, what conda-lock asks of a conda: --version, info --json, create --dry-run --json.

A program of its own, run like conda. The variable CLUSTERFN_CHANNELS, which `program` sets, has the addresses of
channels (JSON: name -> [URL]); conda-lock itself sets CONDA_SUBDIR and CONDA_OVERRIDE_*. The program ends by os._exit,
because py-rattler 0.28 may crash when the interpreter shuts down.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

_VERSION = "conda 24.11.0"  # that whose answers these are like
_FAKE = "conda-lock-fake-repodata"  # conda-lock's channel of virtual packages; they are in CONDA_OVERRIDE_* too
_OVERRIDE = "CONDA_OVERRIDE_"


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="conda")
    parser.add_argument("action")
    parser.add_argument("--prefix")
    parser.add_argument("--channel", action="append", default=[])
    for flag in ("--dry-run", "--json", "--override-channels"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("specs", nargs="*")
    return parser.parse_intermixed_args(argv)


def _channels(names: Sequence[str]) -> list[str]:
    places: dict[str, list[str]] = json.loads(os.environ.get("CLUSTERFN_CHANNELS", "{}"))
    return [url for name in names if _FAKE not in name for url in places.get(name, [name])]


# An exact version as conda-lock writes it, without its operator, which py-rattler wants: "numpy 2.1.3 py311h012_0".
_EXACT = re.compile(r"(?P<name>(?:\S+::)?[\w.-]+) +(?P<version>\d[^\s*,|<>=!~]*)(?P<build>(?: +\S+)?)")


def _spec(text: str, names: Sequence[str]) -> str:
    """Write a spec for py-rattler: exact versions with their operator, channels with their address."""
    exact = _EXACT.fullmatch(text.strip())
    text = f"{exact['name']} =={exact['version']}{exact['build']}" if exact else text
    # conda-lock keeps only the last part of a channel's address, and py-rattler knows no mirrors.
    channel, separator, rest = text.partition("::")
    if not separator or "://" in channel:
        return text
    meant = [name for name in names if name == channel or name.rstrip("/").endswith(f"/{channel}")]
    urls = _channels(meant)
    return f"{urls[0]}::{rest}" if len(urls) == 1 and "://" in urls[0] else rest if urls else text


def _virtual_packages() -> Iterator[Any]:
    from rattler import GenericVirtualPackage, PackageName, Version

    for variable, value in sorted(os.environ.items()):
        if not variable.startswith(_OVERRIDE) or not value:
            continue
        name = "__" + variable[len(_OVERRIDE) :].lower()
        version, build = ("1", value) if name == "__archspec" else (value, "0")
        yield GenericVirtualPackage(PackageName(name), Version(version), _build(build))


def _build(text: str) -> Any:
    """Make a build string: py-rattler 0.28 wants a class of its own where older ones want a str."""
    try:
        from rattler.package.build_string import BuildString
    except ImportError:
        return text
    return BuildString(text)


async def _solved(arguments: argparse.Namespace) -> list[Any]:
    from rattler import solve

    records = await solve(
        _channels(arguments.channel),
        [_spec(text, arguments.channel) for text in arguments.specs],
        platforms=[os.environ["CONDA_SUBDIR"], "noarch"],
        virtual_packages=list(_virtual_packages()),
    )
    return list(records)


def _fetch_action(record: Any) -> dict[str, Any]:
    hashes = {"md5": record.md5.hex() if record.md5 else ""}
    if record.sha256:
        hashes["sha256"] = record.sha256.hex()
    return {
        "name": record.name.normalized, "version": str(record.version), "build": str(record.build),
        "build_number": record.build_number, "url": record.url, "fn": record.file_name, "channel": record.channel,
        "subdir": record.subdir, "depends": [str(each) for each in record.depends],
        "constrains": [str(each) for each in record.constrains], "timestamp": 0, **hashes,
    }  # fmt: skip


def _create(arguments: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    import rattler.exceptions

    expected = tuple(
        kind
        for kind in vars(rattler.exceptions).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__name__.endswith("Error")
    )
    try:
        actions = [_fetch_action(record) for record in asyncio.run(_solved(arguments))]
    except expected as error:
        return 1, {"success": False, "error": type(error).__name__, "message": str(error)}
    links = [{key: each[key] for key in ("name", "version", "fn", "channel")} for each in actions]
    return 0, {"success": True, "dry_run": True, "actions": {"FETCH": actions, "LINK": links}}


def answer(argv: Sequence[str]) -> tuple[int, str]:
    """Return the exit status and the output."""
    if list(argv) == ["--version"]:
        return 0, _VERSION
    arguments = _arguments(argv)
    if arguments.action == "info":
        cache = os.environ.get("CONDA_PKGS_DIRS", "")
        return 0, json.dumps({"conda_version": _VERSION.split()[1], "pkgs_dirs": [cache], "package cache": [cache]})
    if arguments.action == "create" and arguments.dry_run:
        status, content = _create(arguments)
        return status, json.dumps(content)
    return 2, json.dumps({"success": False, "message": f"no conda: it can {arguments.action} nothing"})


if __name__ == "__main__":
    rc, text = answer(sys.argv[1:])
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    os._exit(rc)
