"""What a person sees in JupyterLab, in a headless Chromium: bars, displays that change, tracebacks, figures.

`make test-jupyterlab` installs what it needs and keeps the screenshots in .jupyterlab/.
"""

from __future__ import annotations

import os
import re
import secrets
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

from tests.e2e.conftest import lab_venv, local_host
from tests.waiting import stays, until

pytestmark = [pytest.mark.long, pytest.mark.browser]
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
    until = time.monotonic() + 500
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
    (folder / "clusterfn.yml").write_text(local_host(folder / "root"))
    news = folder / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text('{"fetchNews": "false"}')
    environment = {
        **os.environ, "CLUSTERFN_CONFIG": str(folder / "clusterfn.yml"), "JUPYTER_PATH": str(folder / "jupyter"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
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
    process.wait(150)


def answers(address):
    try:
        with urllib.request.urlopen(address, timeout=150):
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
    """An open notebook of a JupyterLab in a page of the browser; its screenshots have its name."""

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

    def run(self, number):
        """Run one cell, once the kernel is ready."""
        self.page.evaluate(
            """async number => {
                const panel = window.jupyterapp.shell.currentWidget;
                await panel.context.ready;
                await panel.sessionContext.ready;
                await panel.sessionContext.session.kernel.info;
                panel.content.activeCellIndex = number;
                panel.content.deselectAll();
                window.jupyterapp.commands.execute("notebook:run-cell");
            }""",
            number,
        )

    def ask_kernel(self, what):
        """Let JupyterLab interrupt, restart or shut down the kernel."""
        self.page.evaluate(f"window.jupyterapp.shell.currentWidget.sessionContext.session.{what}()")

    def screenshot(self, what):
        kept = Path(os.environ.get("SCREENSHOTS") or self.page.context.kept)
        kept.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(kept / f"{self.name}-{what}.png"))


@pytest.fixture
def open_notebook(server, browser, folder, tmp_path):
    """Open a notebook with these cells, and run all of them."""
    contexts = []

    def opened(name, *cells, kernel="python3", run=True):
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text.strip()) for text in cells])
        made.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
        nbformat.write(made, folder / f"{name}.ipynb")
        context = browser.new_context(viewport=_SIZE)
        context.kept = tmp_path
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(_TIMEOUT_MS)
        page.goto(f"{server}/doc/tree/{name}.ipynb?reset")
        page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
        page.wait_for_function(f"window.jupyterapp.commands.isEnabled('{_RUN}')")
        if run:
            page.evaluate(_RUN_WHEN_READY)
        return Notebook(page, name)

    yield opened
    for context in contexts:
        context.close()


def test_a_map_of_fifty_is_one_bar_and_then_a_few_lines(open_notebook):
    notebook = open_notebook("map", SETUP, MAP)

    notebook.wait_for(1, "%|")
    notebook.screenshot("running")
    notebook.wait_until_done(1)
    notebook.wait_for(1, "49/50 returned")

    notebook.screenshot("done")
    (said,) = notebook.output(1).all()
    assert 3 <= len(said.inner_text().strip().splitlines()) <= 5, said.inner_text()
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


@pytest.fixture
def far_kernel(lab, server, folder):
    """A kernel behind a cable, which the server offers as "far"; the cable and the root of its host."""
    environment = lab_venv(lab, "plots", "ipykernel", "ipywidgets", "matplotlib")
    root = lab.home("bash") / f"browser-{secrets.token_hex(4)}"
    config = folder / "clusterfn.yml"
    before = config.read_text()
    with lab.cable() as cable:
        config.write_text(
            f"{before}  far: {{address: {cable.alias}, ssh_config: {lab.ssh_config}, scheduler: bare, root: {root},"
            " limits: {cores: 64}}\n"
        )
        words = ["far", "--name", "far", "--environment", f"venv:{environment}"]
        variables = {**os.environ, "CLUSTERFN_CONFIG": str(config), "JUPYTER_DATA_DIR": str(folder / "jupyter")}
        subprocess.run([sys.executable, "-m", "clusterfn", "kernel", "add", *words], env=variables, check=True)
        yield cable, root
    config.write_text(before)
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.lab
def test_a_kernel_on_a_host_is_used_interrupted_restarted_and_stopped(open_notebook, far_kernel):
    cable, root = far_kernel
    notebook = open_notebook(
        "kernel",
        "import os; print('kept' if 'plt' in globals() else 'new', os.environ['CLUSTERFN_JOB'])",
        "from matplotlib import pyplot as plt; plt.plot([1, 4, 9]);",
        "import ipywidgets; slider = ipywidgets.IntSlider(); slider",
        "slider.value",
        "import time; print('sleeps', flush=True) or time.sleep(600)",
        "for number in range(700): print(number, flush=True); time.sleep(0.1)",
        kernel="far",
        run=False,
    )
    notebook.run(0)
    notebook.wait_for(0, "new")
    (job,) = (path.name for path in (root / "jobs").iterdir())
    assert job in notebook.output(0).first.inner_text()

    notebook.run(1)
    notebook.output(1).locator("img").first.wait_for()
    notebook.run(2)
    notebook.output(2).locator(".noUi-handle").press("ArrowRight")
    notebook.run(3)
    notebook.wait_for(3, "1")
    notebook.screenshot("used")

    notebook.run(4)
    notebook.wait_for(4, "sleeps")
    notebook.ask_kernel("kernel.interrupt")
    notebook.wait_for(4, "KeyboardInterrupt")

    notebook.run(5)
    notebook.wait_for(5, "3")
    cable.down()
    stays(lambda: "699" not in notebook.output(5).first.inner_text(), 60)
    cable.up()
    notebook.wait_for(5, "699")
    assert notebook.output(5).first.inner_text().split() == [str(number) for number in range(700)]

    notebook.ask_kernel("kernel.restart")
    notebook.run(0)
    notebook.wait_for(0, "new")
    assert job in notebook.output(0).first.inner_text(), "a restart keeps the job"
    notebook.screenshot("restarted")

    notebook.ask_kernel("shutdown")
    ended = root / "jobs" / job / "attempts" / "1" / "outcome.json"
    assert '"returned"' in until(lambda: ended.exists() and ended.read_text())
