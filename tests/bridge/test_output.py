"""Output arrives as it was written, at once, and no amount of it costs the value."""

from __future__ import annotations

import os

from tests.bridge.host import Bench
from tests.waiting import until


def test_bytes_arrive_as_they_were_written(bench: Bench):
    source = "def f(n):\n    import os\n    data = bytes(range(256)) * n\n    os.write(1, data)\n"
    job, outcome = bench.run(source, 100)

    assert outcome["kind"] == "returned"
    assert (job.attempt / "stdout").read_bytes() == bytes(range(256)) * 100


def test_the_beginning_is_kept_and_the_rest_counted(bench: Bench):
    source = "def f():\n    import os\n    for n in range(300): os.write(1, b'%09d\\n' % n * 100)\n    return 'value'\n"
    job, outcome = bench.run(source, log_limit_bytes=100_000)

    text = job.output()
    assert text[:100_000] == "".join(f"{n:09d}\n" * 100 for n in range(100))
    assert text[100_000:] == "\n[clusterfn: 200000 more bytes were not kept: log_limit_bytes is 100000]\n"
    assert "200000 more bytes were not kept" in outcome["notes"][0]
    assert job.value() == "value"


def test_a_child_that_never_stops_writing_does_not_delay_the_value(bench: Bench):
    source = "def f():\n    import subprocess\n    subprocess.Popen(['yes'])\n    return 1\n"
    job, outcome = bench.run(source, grace_s=0.2)

    assert (outcome["kind"], job.value()) == ("returned", 1)


def test_a_line_without_an_end_is_there_before_the_outcome(bench: Bench):
    source = "def f():\n    import threading, time\n    print('75 %', end='')\n"
    job = bench.job(f"{source}    threading.Thread(target=time.sleep, args=(9,)).start()\n", grace_s=1.0)
    job.start()

    until(job.has_outcome)

    assert job.output() == "75 %"


def test_one_print_is_one_write(bench: Bench):
    source = """def f():
    import os, sys
    reader, writer = os.pipe()
    before = os.dup(1)
    os.dup2(writer, 1)
    os.set_blocking(reader, False)
    writes = []
    import io
    print('a', 'b', 3)
    writes.append(os.read(reader, 100).decode())
    print('bar', end='\\r')
    writes.append(os.read(reader, 100).decode())
    os.dup2(before, 1)
    return writes, sys.stdout.line_buffering, sys.stdout.write_through
"""
    job, outcome = bench.run(source)

    assert job.value() == [["a b 3\n", "bar\r"], True, False], outcome


def test_any_character_can_be_printed_under_an_old_locale(bench: Bench):
    job = bench.job("def f():\n    print('zoë \\u2713 \\udc80')\n")

    outcome = job.run(LC_ALL="C", LANG="C")

    assert outcome["kind"] == "returned"
    assert job.output() == "zoë \u2713 \\udc80\n"


def test_evidence_is_the_end_of_stderr_without_control_characters(bench: Bench):
    _, outcome = bench.run("""def f():
    import os, sys
    for n in range(30):
        print('\\x1b[31mline', n, '\\x07', file=sys.stderr)
    os._exit(1)
""")

    assert outcome["evidence"] == [f"line {n}" for n in range(10, 30)]


def test_the_files_are_for_their_owner_alone(bench: Bench):
    job, _ = bench.run("def f():\n    print('x')\n")

    modes = {path.name: oct(path.stat().st_mode & 0o77) for path in job.attempt.iterdir()}
    assert set(modes.values()) == {"0o0"}, modes
    assert os.path.isdir(job.attempt / "work")
