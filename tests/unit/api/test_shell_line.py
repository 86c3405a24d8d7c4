"""A place in the line of a shell is one text, or it is rejected; no value is ever evaluated."""

from __future__ import annotations

import os
import random
import shutil
import subprocess

import pytest

from clusterfn import ConfigError
from clusterfn.api.command import line_of_one_word, make_command, read_command
from clusterfn.api.shell_line import fill_line
from clusterfn.bridge.worker.command import argv_of

CODE = "touch code"
VALUES = [
    "", f"a[$({CODE})]", f"$({CODE})`{CODE}`", f"'; {CODE}; '", f'"; {CODE}; "', f"x) {CODE}", "\\", "{y} *\n${HOME}",
]  # fmt: skip
SHELLS = [shell for shell in ("bash", "dash") if shutil.which(shell)]
ACCEPTED = [
    "printf %s {x}", "printf %s '{x}'", 'printf %s "{x}"', "true # it's {x}\nprintf %s {x}",
    """printf %s "$(printf '%s' '{x}')" """, 'printf %s "$(printf %s "{x}")"', "(printf %s {x})", "printf %s \\'{x}",
    "case {x} in a) ;; *) printf %s {x};; esac", "if [ {x} = a ]; then :; else printf %s {x}; fi",
    "x={x}; printf %s \"$x\"", "export x={x}; sh -c 'printf %s \"$x\"'", "sh -c 'printf %s \"$1\"' sh {x}",
    "printf %s $((1 + 1)){x}",
    "printf %s `echo` {x}", "printf %s \"$HOME{x}\"", "printf %s {x}>out; cat out",
    "for i in {x}; do printf %s \"$i\"; done",
    "sh -c : a -c {x}; echo sh | grep -q sh; printf %s {x}",
    "printf %s {x}; cat <<EOT\n$(( 1 ))\nEOT", "printf %s \"it's {x}\"", "printf %s {{x}}{x}", 'printf %s $"{x}" | cat',
]  # fmt: skip
REJECTED = {
    "within arithmetic": ["echo $(( {x} + 1 ))", "(( {x} ))"],
    "within [[ ]]": ["[[ {x} -eq 1 ]]"],
    "within backticks": ["echo \"`echo '{x}'`\""],
    "within $' '": ["echo $'{x}'"],
    "after": [
        "cat <<EOT\n{x}\nEOT", "cat <<'EOT'\n{x}\nEOT", "cat <<EOT\nit's\nEOT\necho {x}", "echo $(( $(echo {x}) + 1 ))",
        "echo ${y:-{x}}", "echo $[{x}]", r"echo \{x}", r'echo "\{x}"', "echo $'\\'{x}'", "echo 'a {x}", "a[{x}]=1",
        "a=([{x}]=1)", "echo {1..{x}}", "((true); echo {x})",
    ],
    "where a shell evaluates it": [
        "let {x}", "eval {x}", 'eval "echo; echo {x}"', "A='b c' eval {x}", "if ! eval {x}; then :; fi", "\\let {x}",
        "eval $(echo {x})", "bash -c 'echo {x}'", 'srun sh -ec "echo {x}"', "bash <<<{x}", ". <(echo {x})", "ssh h {x}",
        "RANDOM={x}", "printf -v {x} a", "test -v {x}", "trap {x} EXIT", "declare \"a=({x})\"", "2>&1 let {x}",
        "$y eval {x}", "bash -c 2>&1 {x}", "BASH_ENV={x} bash job.sh", '$SHELL -c "echo {x}"',
        '"${BASH}" -c "echo {x}"', '$(which bash) -c "echo {x}"', 'bash --rcfile a -c "echo {x}"',
        'rbash -c "echo {x}"', 'ksh93 -c "echo {x}"',
    ],
    "in a line with": [
        "declare -i n; n={x}", "declare -n n={x}", "echo {x} | bash", "$(case a in a) echo {x};; esac)",
        "echo {x} | bash -s a", "echo {x} | env bash", "echo {x} | (bash)", "echo {x} | { bash; }", "echo {x} | $SHELL",
        "echo {x} | ssh n1", "echo {x} | ssh n1 bash -s", "echo {x} | xargs -I% sh -c %",
    ],
}  # fmt: skip
PIECES = [
    "{x}", "{x}", "{x}", "printf '<%s>' ", '"', "'", "\\", "$(", ")", "(", "`", "; ", "\n", "| cat ", "#", " ", "$((",
    "))", "[[ ", " ]] ", "{", "}", "case a in a) ", ";; esac", "<<EOT\n", "\nEOT\n", "<<'EOT'\n", "$y", "${y:-", "y=",
    "let ", "eval ", "bash -c ", "$'", "a[", "]=", "if true; then ", "fi; ", "<<<", "2>&1 ", "<(", "cat ",
]  # fmt: skip


def said_by(folder, shell, line, value):
    env = {"PATH": os.environ["PATH"], "HOME": "/home/ada", "CLUSTERFN_VALUE_x": value}
    ran = subprocess.run([shell, "-c", line], env=env, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
    assert not os.path.exists(folder / "code"), (shell, line, value)
    return ran.returncode, ran.stdout.decode("utf-8", "replace")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_value_is_one_text_wherever_a_place_is_accepted(tmp_path, shell):
    lines = {template: fill_line(template, ["x"]) for template in ACCEPTED}
    alike = {line: said_by(tmp_path, shell, line, "QQQ") for line in lines.values()}

    assert all(code == 0 and "QQQ" in said for code, said in alike.values()), alike
    for line, (_, said) in alike.items():
        for value in VALUES:
            assert said_by(tmp_path, shell, line, value) == (0, said.replace("QQQ", value)), (line, value)


@pytest.mark.parametrize(("why", "line"), [(why, line) for why, lines in REJECTED.items() for line in lines])
def test_a_place_elsewhere_is_rejected_with_what_to_do(why, line):
    with pytest.raises(ConfigError, match=r"^\{x\} cannot be used ") as caught:
        fill_line(line, ["x"])

    assert why in caught.value.message
    assert caught.value.hint


def test_a_command_is_rejected_before_anything_is_sent():
    with pytest.raises(ConfigError, match=r"^\{x\} cannot be used after '<<': cat <<EOT lr=\{x\} EOT") as caught:
        make_command(read_command("cat <<EOT\nlr={x}\nEOT"), {}, None)

    assert caught.value.hint == "begin the line with export x={x}; and use the variable $x there"


@pytest.mark.parametrize("shell", SHELLS)
def test_no_value_is_evaluated_in_lines_of_random_pieces(tmp_path, shell):
    choose, accepted = random.Random(11), 0
    while accepted < 60:
        template = "".join(choose.choice(PIECES) for _ in range(choose.randint(2, 9)))
        try:
            line = fill_line(template, ["x"])
        except ConfigError:
            continue
        if line != template:
            accepted += 1
            value = choose.choice(VALUES)
            (code, said), (other_code, other) = (said_by(tmp_path, shell, line, each) for each in (value, "QQQ"))
            assert (code, other_code) != (0, 0) or said == other.replace("QQQ", value), (template, value)


@pytest.mark.parametrize(
    "words", [["sh", "-c", "printf %s {x}"], "sh -ec 'printf %s {x}'", 'env a=b /bin/sh -c "printf %s {x}"']
)
def test_words_that_a_shell_reads_as_code_are_filled_like_a_line(tmp_path, words):
    sent, values = make_command(read_command(words), {}, None).function.__wrapped__.args[0], VALUES

    for value in values:
        argv = argv_of(sent, {"x": value})
        ran = subprocess.run(argv, env={**os.environ, "CLUSTERFN_VALUE_x": value}, cwd=tmp_path, capture_output=True)
        assert ran.stdout.decode() == value and not (tmp_path / "code").exists()


def test_places_are_the_same_in_words_and_in_lines():
    text = """{{x}} {x} {"a": {x}} ${x} {{y}}"""

    assert read_command(["echo", text]).names == read_command(f"echo '{text}'; true").names == ("x",)
    sent = make_command(read_command(["echo", text]), {}, None).function.__wrapped__.args[0]
    assert argv_of(sent, {"x": "1"}) == ["echo", '{x} 1 {"a": 1} ${x} {y}']
    assert line_of_one_word("echo {{x}} > {x}").line == "echo {{x}} > {x}"
