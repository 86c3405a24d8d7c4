"""The documents keep what they promise: examples run, links resolve, and files and pages are there."""

from __future__ import annotations

import configparser
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn import errors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
# An example, and what follows it up to the next one.
RUNNABLE = re.compile(r"<!-- runnable -->\n```python\n(.*?)```((?:(?!<!-- runnable -->).)*)", re.DOTALL)
SHOWN = re.compile(r"<!-- shown: (stdout|stderr) -->\n```\n(.*?)```", re.DOTALL)
EXAMPLES = [
    pytest.param(text, dict(SHOWN.findall(rest)), id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (text, rest) in enumerate(RUNNABLE.findall(page.read_text(encoding="utf-8")), 1)
]
# What differs from run to run: times, ids, folders, how many cores there are, and who ended first.
VARIES = [
    (r"~?(/[^/\n\[\]()]*)*/(?=clusterfn/sweeps/|clusterfn\.yml)", "/"),
    (r"-\d{8}-\d{6}-[0-9a-f]{4}", "-ID"), (r"\d+(\.\d)?s\b", "1s"),
    (r"clusterfn: [0-9a-f]{4} ", "clusterfn: ID "), (r"\d+ at a time", "2 at a time"), (r"^\[\d/", "[1/"),
]  # fmt: skip
# What is said only where something takes long, as on a busy machine: a call is prepared, waits, is sent, or goes on.
SLOW = re.compile(r"clusterfn: (connecting |waiting |preparing |ID pending |\d/\d, )")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def local(tmp_path, warm_root, monkeypatch) -> Path:
    """A folder whose only host is this machine, with a root of its own."""
    path = tmp_path / "clusterfn.yml"
    path.write_text(f"hosts:\n  local:\n    scheduler: local\n    root: {warm_root}\n    limits: {{cores: 64}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    return tmp_path


def lasting(shown: str) -> list[str]:
    """The lines of what an example shows, in order, without what differs from run to run."""
    for pattern, word in VARIES:
        shown = re.sub(pattern, word, shown, flags=re.MULTILINE)
    return sorted(line for line in shown.splitlines() if not SLOW.match(line))


@pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")
@pytest.mark.parametrize("text, shown", EXAMPLES)
def test_a_runnable_example_runs_and_shows_what_its_page_says(local, text, shown):
    (local / "example.py").write_text(text, encoding="utf-8")

    ran = subprocess.run([sys.executable, "example.py"], cwd=local, capture_output=True, text=True, timeout=250)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    for stream, expected in shown.items():
        assert lasting(getattr(ran, stream)) == lasting(expected)
    assert len(EXAMPLES) >= 6 and any(shown for _, shown in (example.values for example in EXAMPLES))


def test_every_relative_link_resolves():
    links = [
        (page, *link.partition("#")[::2])
        for page in PAGES
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link
    ]
    assert [(page, path) for page, path, _ in links if not (page.parent / path).exists()] == []
    assert [each for each in links if each[2] and each[2] not in anchors(each[0].parent / each[1], each[0])] == []


@functools.cache
def anchors(named: Path, page: Path) -> set[str]:
    """The headings of a page, as a link names them; of the page itself if the link names none."""
    text = (page if named.is_dir() else named).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def error_classes() -> set[str]:
    return {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }


def test_the_page_of_errors_has_the_classes_and_their_tree():
    text = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    path: list[str] = []
    parents = {}
    for line in text.split("```")[1].strip().splitlines():
        name = line.split()[-1]
        depth = line.index(name) // 4
        path[depth:] = [name]
        parents[name] = path[depth - 1] if depth else "Exception"

    assert set(re.findall(r"^\| `(\w+)`(?:, also an `OSError`)? \|", text, re.MULTILINE)) == error_classes()
    assert parents == {name: getattr(errors, name).__mro__[1].__name__ for name in error_classes()}


def test_the_interface_has_every_public_name():
    import clusterfn

    text = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    wanted = set(clusterfn.__all__) - error_classes() - {"__version__"}

    assert [name for name in sorted(wanted) if name not in text] == []


def test_a_decision_is_short_and_has_its_five_parts():
    parts = ("Context", "Choice", "Alternatives", "Cost", "Reconsider")
    for page in sorted((ROOT / "docs/decisions").glob("*.md")):
        text = page.read_text(encoding="utf-8")

        assert [part for part in parts if f"**{part}" not in text] == [], page
        assert len(text.split()) <= 300, page
        assert [line for line in text.splitlines() if len(line) > 160] == [], page


def test_no_page_names_a_folder_of_this_machine():
    folders = [word for word in (str(ROOT), os.path.expanduser("~") + "/") if len(word) > 2]
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}

    assert [(page, word) for page, text in texts.items() for word in folders if word in text] == []


def test_every_page_of_the_documents_is_reached_from_the_readme():
    reached, open_pages = set(), [ROOT / "README.md"]
    while open_pages:
        page = open_pages.pop().resolve()
        if page in reached or not page.is_file() or page.suffix != ".md":
            continue
        reached.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8")))
        open_pages += [page.parent / link for link in links if link and "://" not in link]
    decisions = set((ROOT / "docs" / "decisions").glob("*.md"))

    assert [name_of(page) for page in PAGES if page not in reached | decisions] == []


NAMED_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
THREATS = (ROOT / "docs" / "explanation" / "threats.md").read_text(encoding="utf-8")


def test_each_threat_has_a_test_that_exists():
    named = NAMED_TEST.findall(THREATS)
    missing = [each for each in named if f"def {each[1]}(" not in (ROOT / "tests" / each[0]).read_text("utf-8")]
    assert missing == []

    rows = [line for line in THREATS.splitlines() if line.startswith("| ") and not line.endswith("| shown by |")]

    assert len(rows) > 45 and [line for line in rows if not NAMED_TEST.search(line)] == []


DEFINED = re.compile(r"`(?:(\w+)\.)?(\w+)` in `(?:clusterfn/)?([\w/]+\.py)`")


def test_what_a_page_says_is_defined_in_a_file_of_the_code_is_defined_there():
    said = {each for page in PAGES for each in DEFINED.findall(page.read_text(encoding="utf-8"))}

    assert len(said) > 30
    for inside, name, file in said:
        text = (ROOT / "clusterfn" / file).read_text(encoding="utf-8")

        assert re.search(rf"^ *(?:(?:def|class) {name}\b|{name}(?:: .+)? = )", text, re.MULTILINE), (file, name)
        assert not inside or f"class {inside}" in text, (file, inside)


def test_each_key_of_a_host_that_a_page_names_exists():
    """Keys are written with a colon; what is only an attribute of the code is no key."""
    attributes = {"keep_days", "queue_timeout_s", "memory_bytes", "log_limit_bytes"}
    said = {page.name: set(re.findall(r"`(\w+)`", page.read_text(encoding="utf-8"))) for page in PAGES}

    assert {name for name, words in said.items() if words & attributes} <= {"protocol.md", "job-directory.md"}


def test_what_is_promised_to_installers_is_true():
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg", encoding="utf-8")
    ssh = (ROOT / "docs/how-to/ssh.md").read_text(encoding="utf-8")
    untried = "clusterfn has not been tried on a real Windows or macOS machine" in ssh
    said = "".join(page.read_text(encoding="utf-8") for page in PAGES)

    assert any(name in declared["metadata"]["classifiers"] for name in ("Windows", "MacOS")) != untried
    assert [name for name in declared["options.extras_require"] if name != "test" and f"[{name}]" not in said] == []


def test_the_demo_needs_no_tools_of_the_tests_and_no_second_attempt_hides_a_test_that_fails():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    ask = ["make", "-n", "tests-side-by-side"]
    planned = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, timeout=150, check=True).stdout

    assert "\ndemo: $(STAMP)" in makefile and "-e .\n\t@touch $(STAMP)" in makefile
    assert len([line for line in planned.splitlines() if " -m pytest " in line]) == 1
    assert not any(word in planned for word in ("||", "--lf", "--last-failed", "reruns"))


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")
def test_the_files_of_the_page_about_testing_are_tests_that_pass(tmp_path):
    page = (ROOT / "docs/how-to/testing.md").read_text(encoding="utf-8")
    files = dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", page, re.DOTALL))
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    ran = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=150)

    assert set(files) == {"conftest.py", "training.py", "test_training.py"}
    assert ran.returncode == 0 and "3 passed" in ran.stdout, ran.stdout + ran.stderr
