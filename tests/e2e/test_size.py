"""No function is too long, too busy or too oddly quoted: what comes back equals what it returns here."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys

import pytest

pytestmark = pytest.mark.lab

SIZES = (1, 5, 19, 20, 21, 29, 30, 31, 100, 1000, 5000)
ODD = "".join(
    [
        "'\"`$HOME ${x} $(id) \\ \\n \\' ''' \"\"\" %s %d %% {} {{}} !history ~ * ? [a-z] # ; & | < > ( ) @@id\n",
        "\t\r\n\x0b\x0c äöü 漢字 🚀 \u2028 \u0085 EOF\nEOF\n'EOF'\n\x00 \x01 \x1b[0m \x7f \\x00 \\u0041 \\N{DASH}",
    ]
)
LONE = "\ud800 \udcff"
SHELL = ODD.replace("\0", "")


def with_lines(count):
    """Source of `steps`, whose body has so many lines; leave one out and its value is another."""
    first, last = "    total = 1\n", "    return total, (total * 7) % 1009\n"
    if count == 1:
        return "def steps():\n    return 1, sum([1, 2, 3])\n"
    middle = (f"    total = (total * 31 + {n}) % 1000003\n" for n in range(count - 2))
    return f"def steps():\n{first}{''.join(middle)}{last}"


def with_literal(size):
    """Source of `literal`, which holds a text of that size, full of quotes."""
    text = (ODD + LONE) * (size // len(ODD + LONE) + 1)
    return (
        "import hashlib\n\n\ndef literal():\n"
        f"    text = {text[:size]!r}\n"
        "    return len(text), hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()\n"
    )


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import a text as a module that the user wrote; the function of that name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])

    def write(source, name, host):
        decorated = source.replace(f"def {name}()", f"@cluster(host={host!r})\ndef {name}()")
        module = "written_" + hashlib.sha256(decorated.encode()).hexdigest()[:10]
        (tmp_path / f"{module}.py").write_text(f"from clusterfn import cluster\n{decorated}", encoding="utf-8")
        importlib.invalidate_caches()
        return getattr(importlib.import_module(module), name)

    return write


def test_functions_of_all_lengths_in_a_script(hosts, run_script):
    text = ["import json", "from clusterfn import cluster"]
    for lines in SIZES:
        text.append("@cluster(host='tensor01')\n" + with_lines(lines).replace("def steps", f"def steps_{lines}"))
    text.append(f"sizes = {SIZES}")
    text.append("jobs = [globals()[f'steps_{n}'].submit() for n in sizes]")
    text.append("local = [globals()[f'steps_{n}'].local() for n in sizes]")
    text.append("print(json.dumps([[list(job.result()) for job in jobs], [list(value) for value in local]]))")

    there, here = run_script("\n".join(text))

    assert there == here


def test_a_string_literal_of_ten_megabytes_in_a_script(hosts, run_script):
    ending = "import json\nprint(json.dumps([literal(), literal.local()]))\n"
    source = with_literal(10 << 20).replace("def literal", "@cluster(host='tensor01')\ndef literal")

    there, here = run_script(f"from clusterfn import cluster\n{source}\n{ending}")

    assert there == here
    assert here[0] == 10 << 20


def test_code_as_a_string_with_every_quote_passes_through_a_child_process(hosts, load):
    size = 100 << 10
    code = f"import sys\ntext = {SHELL!r} + sys.argv[1]\nsys.stdout.buffer.write(text.encode())\n"
    argument = (SHELL * (size // len(SHELL.encode()) + 1)).encode()[:size].decode("utf-8", "ignore")
    source = (
        f"import hashlib\nimport subprocess\n\n\ndef child():\n    code = {code!r}\n    argument = {argument!r}\n"
        "    done = subprocess.run(['python', '-c', code, argument], capture_output=True)\n"
        "    return done.returncode, done.stderr, len(done.stdout), hashlib.sha256(done.stdout).hexdigest()\n"
    )
    function = load(source, "child", "tensor01")

    assert function() == function.local()
    assert function.local()[:2] == (0, b"")


@pytest.mark.parametrize("host", ["tensor01", "slurm"])
def test_odd_characters_pass_as_argument_value_and_output(hosts, host, capsys):
    from clusterfn import cluster

    @cluster(host=host)
    def echo(text, *, key):
        print(text)
        return {text: key, "lone": key + text}

    given = ODD + LONE

    assert echo(ODD, key=LONE) == {ODD: LONE, "lone": LONE + ODD}
    assert capsys.readouterr().out == ODD + "\n"
    assert echo(given, key="") == {given: "", "lone": given}
