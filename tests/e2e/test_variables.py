"""A function has the same variables, and a Python that has read them, however it is called."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterfn import Session, cluster
from tests.waiting import until

# None of these may be those of the shell of job.sh: of some calls none has started.
SHELLS = {"_": "/bin/other", "SHLVL": "7", "OLDPWD": "/nowhere"}
READ_AT_START = {
    "PYTHONHASHSEED": "3", "PYTHONWARNINGS": "error::UserWarning", "PYTHONPATH": "/nowhere", "TZ": "Asia/Tokyo",
}  # fmt: skip


def _made_here() -> Callable[[int], dict[str, Any]]:
    """Return a function that travels by value: an environment may have no pytest."""

    def see(number: int) -> dict[str, Any]:
        import os
        import sys
        import time

        own = ("CLUSTERFN_", "PWD")
        return {
            "is_forked": "_clusterfn.bridge.worker.template" in sys.modules,
            "is in its folder": os.environ["PWD"] == os.getcwd(),
            "variables": {name: value for name, value in os.environ.items() if not name.startswith(own)},
            "hash": hash("x") if "PYTHONHASHSEED" in os.environ else None,
            "warnings": sys.warnoptions,
            "folders": [each for each in sys.path if each == os.environ.get("PYTHONPATH")],
            "zone": time.tzname[0],
        }

    return see


def _call(env: dict[str, str]) -> dict[str, Any]:
    call = cluster(env=env)(_made_here())
    if env:  # for Python, so they are never forked, not even when there has been time for a template
        return [call(0) for _ in range(12)][-1]
    return until(lambda: (seen := call(0))["is_forked"] and seen)


def _item(env: dict[str, str]) -> dict[str, Any]:
    return cluster(env=env)(_made_here()).map(range(40), max_parallel=1).results()[-1]


def _call_of_a_session(env: dict[str, str]) -> dict[str, Any]:
    with Session(env=env) as session:
        return session.call(_made_here(), 0)


@pytest.mark.parametrize("env", [{}, READ_AT_START], ids=["as on the host", "read by Python"])
@pytest.mark.parametrize("way", [_call, _item, _call_of_a_session])
def test_a_function_has_the_same_variables_however_it_is_called(
    here: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[dict[str, str]], dict[str, Any]], env: dict[str, str]
):
    for name, value in SHELLS.items():
        monkeypatch.setenv(name, value)
    alone = cluster(env=env)(_made_here())(0)

    seen = way(env)

    assert alone.pop("is in its folder") and seen.pop("is in its folder")
    assert not alone.pop("is_forked") and seen.pop("is_forked") is (way is _item or way is _call and not env)
    assert seen == alone
    assert not SHELLS.keys() & alone["variables"].keys()
    assert env.items() <= alone["variables"].items()
    assert (alone["folders"], alone["zone"] == "JST") == ((["/nowhere"], True) if env else ([], False))


@pytest.mark.usefixtures("here")
def test_a_function_has_the_settings_of_the_script_however_it_is_called() -> None:
    def third(number: int) -> str:
        from decimal import Decimal

        return str(Decimal(number) / 3)

    class Kept:
        def third(self, number: int) -> str:
            from decimal import Decimal

            return str(Decimal(number) / 3)

    usual, few = "0.3333333333333333333333333333", "0.33333"
    with Session("here", workers=2) as session:
        kept = session.actor(Kept)
        found = [kept.third(1)]
        with decimal.localcontext() as context:
            context.prec = 5
            found += [cluster(host="here")(third)(1), *cluster(host="here")(third).map([1, 1]).results(150)]
            found += [session.call(third, 1), kept.third(1)]
        found += [kept.third(1), cluster(host="here")(third)(1)]

    assert found == [usual, few, few, few, few, few, usual, usual]
