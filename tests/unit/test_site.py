"""`make docs`: each page is on the site, links and search work, and nothing is loaded from another server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEARCH = ROOT / "tests/fixtures/site_search.js"
LOADED = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"?([^\s\">]+)|<link[^>]*\shref=\"?([^\s\">]+)")
# What people type, from public questions about such tools, below the page that must be among the first three
QUERIES = {
    "explanation/comparison": "kubernetes, MPI, SkyPilot, dstack",
    "explanation/faq": "breakpoint, pdb, sys.path, log file, print output, firewall, nohup tmux, close laptop, "
    "uninstall, keep running after disconnect, no space left on device, disk quota, large arguments, telemetry",
    "explanation/limitations": "PBS",
    "explanation/python-versions": "python version",
    "how-to/assistants": "coding agent, AI assistant",
    "how-to/attach": "kill job, cancel, timeout",
    "how-to/checkpoints": "requeue, preempted, time limit, checkpoint, resume training",
    "how-to/commands": "torchrun, sbatch script, nvidia-smi",
    "how-to/containers": "docker, apptainer",
    "how-to/dask": "dask",
    "how-to/debug": "ModuleNotFoundError, stderr, environment variable",
    "how-to/environments": "conda activate, conda environment, requirements.txt, pyproject.toml, "
    "pip install my own package",
    "how-to/experiment-tracking": "tensorboard, wandb, mlflow",
    "how-to/files": "data set, upload data, download results",
    "how-to/follow-jobs": "port forwarding, email notification",
    "how-to/gpu-helpers": "CUDA out of memory",
    "how-to/gpu-server": "which GPU, share GPU server, CUDA_VISIBLE_DEVICES, memory limit, OutOfMemory",
    "how-to/kernels": "VS Code, jupyter",
    "how-to/libraries": "hydra, joblib, optuna",
    "how-to/many-calls": "array job, progress bar",
    "how-to/migrate": "submitit",
    "how-to/secrets": "API key",
    "how-to/several-gpus": "DDP, multi node",
    "how-to/slurm": "partition, account, module load, module command not found, why does my job wait",
    "how-to/ssh": "password, 2FA, two-factor, proxy jump, ssh key, known_hosts, windows, macOS, cron",
    "how-to/sweep": "hyperparameter search, grid search",
    "how-to/testing": "pytest, test without server, run locally",
    "reference/api": "async await",
    "reference/cli": "exit code",
    "reference/errors": "pickle error",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site, built as `make docs` builds it, and what was printed meanwhile."""
    pytest.importorskip("properdocs", reason="ProperDocs is not installed: run make docs once")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "properdocs", "build", "--strict", "--site-dir", folder]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder, ran.stdout + ran.stderr


@pytest.fixture
def site(built: tuple[Path, str]) -> Path:
    return built[0]


@pytest.mark.long
def test_the_build_prints_no_warning_as_of_the_end_of_life_of_its_generator(built: tuple[Path, str]) -> None:
    assert re.findall(r"(?i).*(?:warning|error|end of life|deprecat|zensical).*", built[1]) == []


@pytest.mark.long
def test_the_search_of_the_site_finds_what_people_type(site: Path) -> None:
    """By the site's own search: the script that a browser runs."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    wanted = {query: f"{page}.html" for page, queries in QUERIES.items() for query in queries.split(", ")}
    found = json.loads(
        subprocess.run(
            [node, SEARCH, site], input=json.dumps([*wanted]), capture_output=True, text=True, timeout=150, check=True
        ).stdout
    )
    missed = {query: (page, found[query][:3]) for query, page in wanted.items() if page not in found[query][:3]}

    assert len(wanted) >= 60
    assert len(missed) <= 2, missed


@pytest.mark.long
def test_every_page_is_on_the_site_and_search_finds_it_unless_it_is_a_decision(site: Path) -> None:
    found = {entry["location"] for entry in json.loads((site / "search/search_index.json").read_text())["docs"]}
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    decisions = {page for page in pages if page.startswith("decisions/")}

    assert (pages - decisions) | {"documents.html", "changelog.html", "contributing.html"} <= found
    assert [location for location in found if location.startswith("decisions/")] == []
    assert all((site / page).is_file() for page in decisions)
    assert (site / "files/examples/frameworks.py").is_file()


@pytest.mark.long
def test_the_table_of_compatibility_has_each_row_and_a_filter_on_the_site_and_is_not_searched(site: Path) -> None:
    page = (site / "explanation/compatibility.html").read_text(encoding="utf-8")
    rows = (ROOT / "docs/explanation/compatibility.csv").read_text(encoding="utf-8").splitlines()[1:]
    searched = (site / "search/search_index.json").read_text(encoding="utf-8")

    assert page.count("<tr><td>") >= len(rows) > 1000
    assert "type='search'" in page or 'type="search"' in page or "type=search" in page
    assert "distutils.ccompiler.CCompilerError" in page
    assert "distutils.ccompiler.CCompilerError" not in searched


@pytest.mark.long
def test_every_link_of_the_site_leads_to_a_file_of_it(site: Path) -> None:
    missing = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in re.findall(r"<a [^>]*href=\"?([^\s\">#]+)", page.read_text(encoding="utf-8")):
            if "://" not in link and not (page.parent / link).exists():
                missing.append((page.relative_to(site).as_posix(), link))

    assert missing == []


@pytest.mark.long
def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    loaded = {
        one or other for page in site.rglob("*.html") for one, other in LOADED.findall(page.read_text(encoding="utf-8"))
    }
    styles = "".join(page.read_text(encoding="utf-8") for page in site.rglob("*.css"))

    assert loaded
    assert [address for address in loaded if "//" in address] == []
    assert re.findall(r"url\([\"']?(?:https?:)?//|@import", styles) == []
