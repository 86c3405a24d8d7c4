"""No function is too long or too oddly quoted: what comes back equals what it returns here."""

from __future__ import annotations

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


@pytest.mark.long
def test_a_string_literal_of_ten_megabytes_in_a_script(hosts, run_script):
    ending = "import json\nprint(json.dumps([literal(), literal.local()]))\n"
    source = with_literal(10 << 20).replace("def literal", "@cluster(host='tensor01')\ndef literal")

    there, here = run_script(f"from clusterfn import cluster\n{source}\n{ending}")

    assert there == here
    assert here[0] == 10 << 20
