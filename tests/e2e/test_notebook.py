"""A notebook is a place to call from: cells travel, and output lies under its cell."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

# Of Jupyter's own making: its sockets and loops are closed late.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
# Outputs that come four seconds after the end of their cell would be left out.
IN_TIME = {"timeout": 150, "iopub_timeout": 150, "startup_timeout": 150, "kernel_name": "python3"}
# A busy machine may need longer to start an agent than a client stays silent.
SILENT = "from clusterfn.hosts import spoken_wait\nspoken_wait.SPEAK_AFTER_S = 600.0"
EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def run_notebook(notebook, folder, *, failing=False):
    """Each code cell's (stdout, text of its value, error) after all have run in a kernel."""
    NotebookClient(notebook, allow_errors=failing, **IN_TIME).execute(cwd=str(folder))
    return [told(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]


def told(outputs):
    def streams(name):
        return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == name)

    values = [o.data["text/plain"] for o in outputs if o.output_type == "execute_result"]
    errors = [o for o in outputs if o.output_type == "error"]
    return streams("stdout"), (values or [None])[0], (errors or [None])[0]


def of_cells(*cells):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])


def test_the_example_runs_on_this_machine_and_is_kept_with_the_outputs_that_it_has(here, tmp_path):
    kept, ran = nbformat.read(EXAMPLE, 4), nbformat.read(EXAMPLE, 4)
    for cell in ran.cells:
        if cell.cell_type == "code":
            cell.outputs = []

    found = run_notebook(ran, tmp_path)

    assert found == [told(cell.outputs) for cell in kept.cells if cell.cell_type == "code"]
    assert found[3][0] == "fitting 4 points\nTrue 21.0\n"
    shown = [each for cell in kept.cells for each in cell.get("outputs", ()) if each.output_type == "display_data"]
    assert sum("clusterfn" in each.data["text/plain"] for each in shown) == 3
    assert any("RETURNED" in each.data["text/plain"] for each in shown), "run all of it, until the job has ended"


MAP = f"""{SILENT}
from clusterfn import cluster
@cluster
def score(x):
    if x % 10 == 7:
        raise ValueError(f"<b>{{x}}</b>")
    print("line", x)
    return x
values = score.map(range(20)).results()
"""


def test_the_status_of_a_call_and_of_a_map_are_lines_below_their_cells(here, tmp_path):
    notebook = of_cells(MAP, "score(3)")
    NotebookClient(notebook, **IN_TIME).execute(cwd=str(tmp_path))

    of_the_map, of_the_call = (cell.outputs for cell in notebook.cells)
    assert [each.output_type for each in of_the_map] == ["display_data"]
    sent, *failed, ended, cause, _ = of_the_map[0].data["text/plain"].splitlines()
    assert " score on here " in sent and ended.startswith("clusterfn: 18/20 returned, ")
    assert sorted(line.partition("✗")[2] for line in failed) == [f" failed: ValueError: <b>{x}</b>" for x in (17, 7)]
    assert "<b>" in cause
    shown, *said, value = of_the_call
    assert re.fullmatch(r"clusterfn: \w{16} score on here \(.*\)", shown.data["text/plain"])
    assert [(each.name, each.text) for each in said] == [("stdout", "line 3\n")]
    assert value.data["text/plain"] == "3"


SUBMITTED = f"""{SILENT}
from clusterfn import cluster
@cluster
def talks():
    print("epoch 1")
    print("epoch <2>", flush=True)
job = talks.submit()
job
"""
UNTIL_SHOWN = """
import time
until = time.monotonic() + 120
while not ("epoch <2>" in (shown := job._repr_mimebundle_()["text/plain"]) and "RETURNED" in shown):
    assert time.monotonic() < until, shown
    time.sleep(0.02)
print(shown)
"""


def test_a_submitted_job_that_a_cell_shows_receives_its_output(here, tmp_path):
    notebook = of_cells(SUBMITTED, UNTIL_SHOWN)
    NotebookClient(notebook, **IN_TIME).execute(cwd=str(tmp_path))

    (shown,), (then,) = (cell.outputs for cell in notebook.cells)
    assert shown.output_type == "display_data" and " talks on here: " in shown.data["text/plain"]
    head, *_, first, second = then.text.splitlines()
    assert " talks on here: RETURNED " in head and (first, second) == ("  | epoch 1", "  | epoch <2>")


MAGIC = (
    "%load_ext clusterfn\ndata, count = [1, 2, 3], 0",
    "%%cluster -i data -o total -o Point --name summed\nimport math\nclass Point:\n    x = 1\n"
    "print('in the job')\ndisplay({'a': 1})\ntotal = math.fsum(data)\ntotal",
    "total, Point.x",
    "%%cluster -i data -o late,total\ntotal = 0\nif not data:\n    late = 1",
    "total",
    "%%cluster -i data\n\ndef f(x):\n    return x / 0\n\ndisplay('before')\nf(data[0])",
    "%%cluster -i dta\n1",
    "%%cluster\nprint(data, count)",
)


def test_a_cell_runs_on_a_host_and_its_errors_name_its_lines(here, tmp_path):
    notebook = of_cells(*MAGIC)
    NotebookClient(notebook, allow_errors=True, **IN_TIME).execute(cwd=str(tmp_path))
    _, ran, then, late, total, failed, unknown, unsent = (cell.outputs for cell in notebook.cells)

    assert [each.data["text/plain"] for each in ran if each.output_type == "display_data"][1:] == ["{'a': 1}", "6.0"]
    assert " summed on here " in ran[0].data["text/plain"] and "in the job\n" in [each.get("text") for each in ran]
    assert then[0].data["text/plain"] == "(6.0, 1)"
    assert late[-1].evalue.startswith("%%cluster -o: the cell ended without setting late")
    assert total[0].data["text/plain"] == "0"
    assert "'before'" in [each.get("data", {}).get("text/plain") for each in failed]
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(failed[-1].traceback))
    assert failed[-1].ename == "ZeroDivisionError"
    assert "Cell In[6], line 7, in <module>\n    f(data[0])\n  Cell In[6], line 4, in f\n    return x / 0" in text
    assert "no variable 'dta'; did you mean data?" in unknown[-1].evalue
    assert "the cell uses count, data, which exist only in the notebook" in unsent[-1].evalue
    assert "send variables: -i count -i data" in unsent[-1].evalue


CELLS = (
    "from dataclasses import dataclass\nfrom clusterfn import cluster\nSCALE = 2",
    "@dataclass\nclass Point:\n    x: int\n    def moved(self): return Point(self.x + SCALE)",
    "@cluster(host='tensor01')\ndef f(p):\n    print('first', p)\n    return p.moved()",
    "p = f(Point(1))\n(type(p) is Point, isinstance(p, Point), p == Point(3), p.moved().x)",
    "SCALE = 10\nf(Point(1)).x",
    "@cluster(host='tensor01')\ndef f(p):\n    print('second', p)\n    return helper(p)\n"
    "def helper(p):\n    return p.x * 7",
    "f(Point(2))",
    "job = f.submit(Point(3))\nawait job",
    "import asyncio\nawait asyncio.gather(*(f.submit(Point(n)) for n in range(3)))",
    "%%time\nmagic = f(Point(5))",
    "magic",
    "@dataclass\nclass Point:\n    y: int",
    "@cluster(host='tensor01')\ndef make(): return Point(4)\nmade = make()\n(type(made) is Point, made.y)",
    "@cluster(host='tensor01')\ndef fails(n):\n    bad = n - 1\n"
    "    raise ValueError(f'no {bad}')  # in a cell\nfails(8)",
    "@cluster(host='tensor01')\ndef pooled():\n    import multiprocessing\n"
    "    with multiprocessing.get_context('spawn').Pool(2) as pool: return pool.map(abs, [-1, -2])\npooled()",
)


@pytest.mark.lab
def test_what_cells_define_works_elsewhere_and_comes_back(hosts, tmp_path):
    found = run_notebook(of_cells(*CELLS), tmp_path, failing=True)

    assert found[3][:2] == ("first Point(x=1)\n", "(True, True, True, 5)")
    assert found[4][:2] == ("first Point(x=1)\n", "11")
    assert found[6][:2] == ("second Point(x=2)\n", "14")
    assert found[7][1] == "21"
    assert found[8][1] == "[0, 7, 14]"
    assert found[9][0].startswith("second Point(x=5)\n")
    assert found[10][1] == "35"
    assert found[12][1] == "(True, 4)"
    assert found[14][1] == "[1, 2]"
    assert [index for index, (_, _, error) in enumerate(found) if error is not None] == [13]
    check_error(found[13][2])


def check_error(error):
    """The function's own exception, and below it the line of the cell that raised it there."""
    assert (error.ename, error.evalue) == ("ValueError", "no 7")
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert "raise ValueError(f'no {bad}')  # in a cell" in text
    assert "tensor01" in text
    assert "Cell In[14], line 4, in fails" in text and "/ipykernel_" not in text
    ours = re.findall(r"clusterfn/(\w+\.py)", text)
    assert not ours and "noqa" not in text
