"""What comes back from a cell that ran on a host."""

from __future__ import annotations

import pytest

from clusterfn.errors import HostError
from clusterfn.integrations.jupyter import cell_magic


def test_a_cell_of_a_hostile_host_runs_nothing_in_the_notebook_and_sets_only_what_was_asked_for():
    html = {"text/html": "<script>x</script>", "application/javascript": "x", "text/plain": "a\x1b[2Jb"}
    told = {"values": {"asked": 1, "open": 2}, "missing": [], "shown": [html, {"image/png": "x", "text/html": "y"}]}

    values, shown = cell_magic.read_result(told, ["asked", "lacking"], "box", is_data=True)

    assert values == {"asked": 1}
    assert [set(bundle) for bundle in shown] == [{"text/plain"}, {"text/plain", "image/png"}]
    assert shown[0]["text/plain"] == "ab"
    assert cell_magic.read_result(told, ["asked"], "box", is_data=False)[1] == told["shown"]
    for nonsense in (7, {}, {"values": 1, "shown": []}, {"values": {}, "shown": [3]}):
        with pytest.raises(HostError, match="box sent the result of the cell"):
            cell_magic.read_result(nonsense, ["asked"], "box", is_data=True)
