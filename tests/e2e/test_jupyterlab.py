"""What a person sees in JupyterLab, in a headless Chromium: bars, displays that change, tracebacks, figures.

`make test-jupyterlab` installs what it needs and keeps the screenshots in .jupyterlab/.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.long
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_MISSING = "JupyterLab or its browser is not installed: make test-jupyterlab"
_TIMEOUT_MS = 120_000
_RUN = "notebook:run-all-cells"
_RUN_WHEN_READY = f"""async () => {{
    const notebook = window.jupyterapp.shell.currentWidget;
    await notebook.context.ready;
    await notebook.sessionContext.ready;
    await notebook.sessionContext.session.kernel.info;
    window.jupyterapp.commands.execute("{_RUN}");
}}"""
_SIZE = {"width": 1000, "height": 900}

SETUP = """
%load_ext clusterfn
import time
from clusterfn import cluster
@cluster
def score(x):
    time.sleep(0.05)
    if x == 7:
        raise ValueError("seven")
    return x * x
"""
MAP = "values = score.map(range(50)).results()"
JOB = """
@cluster
def epochs(folder):
    import os
    for number in range(3):
        print("epoch", number, flush=True)
    until = time.monotonic() + 60
    while not os.path.exists(folder + "/go") and time.monotonic() < until:
        time.sleep(0.02)
    print("the end")
job = epochs.submit({folder!r})
job
"""
FAILURE = """%%cluster
def ratio(x):
    return 1 / x

ratio(0)"""
FIGURE = """%%cluster
from matplotlib import pyplot as plt
plt.plot([1, 4, 9])
plt.title("from the job");"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def server(folder):
    """JupyterLab's address; its notebooks are those of `folder`."""
    pytest.importorskip("jupyterlab", reason=_MISSING)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = {"IdentityProvider.token": "", "ServerApp.port": port, "ServerApp.root_dir": folder}
    words = [f"--{name}={value}" for name, value in settings.items()]
    (folder / "clusterfn.yml").write_text(f"hosts:\n  here:\n    scheduler: local\n    root: {folder}/root\n")
    news = folder / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text('{"fetchNews": "false"}')
    environment = {
        **os.environ,
        "CLUSTERFN_CONFIG": str(folder / "clusterfn.yml"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    argv = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser", *words]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while not answers(f"{address}/api"):
        assert process.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()
        time.sleep(0.2)
    yield address
    process.terminate()
    process.wait(30)


def answers(address):
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason=_MISSING)
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt install chromium")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


class Notebook:
    """An open notebook of a JupyterLab.

    Args:
        page: The page of the browser.
        name: Of the notebook, and of its screenshots.
    """

    def __init__(self, page, name):
        self.page, self.name = page, name
        self.cells = page.locator(".jp-Notebook .jp-CodeCell")

    def output(self, number):
        return self.cells.nth(number).locator(".jp-OutputArea-output")

    def wait_for(self, number, text):
        """Wait until a cell's output holds a text."""
        self.output(number).filter(has_text=text).first.wait_for(timeout=_TIMEOUT_MS)

    def wait_until_done(self, number):
        prompt = self.cells.nth(number).locator(".jp-InputPrompt")
        prompt.filter(has_text=re.compile(r"\[\d+\]:")).wait_for(timeout=_TIMEOUT_MS)

    def screenshot(self, what):
        kept = Path(os.environ.get("SCREENSHOTS") or self.page.context.kept)
        kept.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(kept / f"{self.name}-{what}.png"))


@pytest.fixture
def open_notebook(server, browser, folder, tmp_path):
    """Open a notebook with these cells, and run all of them."""
    contexts = []

    def opened(name, *cells):
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text.strip()) for text in cells])
        made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(made, folder / f"{name}.ipynb")
        context = browser.new_context(viewport=_SIZE)
        context.kept = tmp_path
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(_TIMEOUT_MS)
        page.goto(f"{server}/doc/tree/{name}.ipynb?reset")
        page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
        page.wait_for_function(f"window.jupyterapp.commands.isEnabled('{_RUN}')")
        page.evaluate(_RUN_WHEN_READY)
        return Notebook(page, name)

    yield opened
    for context in contexts:
        context.close()


def test_a_map_of_fifty_is_one_bar_and_at_most_five_lines(open_notebook):
    notebook = open_notebook("map", SETUP, MAP)

    notebook.output(1).locator("progress").wait_for()
    notebook.screenshot("running")
    notebook.wait_until_done(1)
    notebook.wait_for(1, "49/50 returned")

    notebook.screenshot("done")
    (said,) = notebook.output(1).all()
    assert said.locator("progress").count() == 1
    assert 2 <= len(said.inner_text().strip().splitlines()) <= 6, said.inner_text()  # the bar, and five lines
    assert "application/vnd.jupyter.stderr" not in (said.get_attribute("data-mime-type") or "")


def test_a_job_updates_without_a_new_cell(open_notebook, folder):
    notebook = open_notebook("job", SETUP, JOB.format(folder=str(folder)))

    notebook.wait_until_done(1)
    notebook.wait_for(1, "epoch 2")
    assert "RUNNING" in notebook.output(1).inner_text()
    notebook.screenshot("running")
    (folder / "go").touch()
    notebook.wait_for(1, "the end")
    notebook.wait_for(1, "RETURNED")

    notebook.screenshot("done")
    assert notebook.output(1).count() == 1 and notebook.cells.count() == 2


def test_a_failure_points_to_its_cell(open_notebook):
    notebook = open_notebook("failure", SETUP, FAILURE)

    notebook.wait_until_done(1)
    notebook.wait_for(1, "Traceback (most recent call last)")

    notebook.screenshot("done")
    told = " ".join(notebook.output(1).last.inner_text().split())
    assert "Cell In[2], line 5, in <module> ratio(0) Cell In[2], line 3, in ratio return 1 / x" in told


def test_a_figure_appears_once(open_notebook):
    notebook = open_notebook("figure", SETUP, FIGURE)

    notebook.wait_until_done(1)
    notebook.output(1).locator("img").first.wait_for()

    notebook.screenshot("done")
    assert notebook.output(1).locator("img").count() == 1
