"""The command line without any host: words, arguments, tables, and how errors read."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from clusterfn.cli import complaint, jobs, main, screen, target
from clusterfn.cli.calls import written
from clusterfn.errors import ClusterfnError, ConfigError, OutOfMemory
from clusterfn.outcome import RemoteTraceback


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["run", "--help"], ["check", "--help"], ["stop", "--help"]]
)
def test_help_and_version_leave_with_zero(words, capsys):
    assert main(words) == 0
    assert "clusterfn" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["chek"], ["run"], ["jobs", "--jsno"], ["logs"]])
def test_wrong_usage_leaves_with_two_and_prints_nothing_on_stdout(words, capsys):
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "usage: clusterfn" in printed.err


def test_an_unknown_command_names_the_nearest(capsys):
    main(["chek"])

    assert "there is no command 'chek'; did you mean check?" in capsys.readouterr().err


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / f"mine_{abs(hash(tmp_path)) % 10**8}.py"
    path.write_text(
        "from clusterfn import cluster\n"
        "LOADED = __name__\n"
        "@cluster(cores=3)\ndef train(lr, layers=2):\n    return lr\n"
        "def plain():\n    return 1\n"
        "class Kind: pass\n"
        "if __name__ == '__main__':\n    raise SystemExit('run as a script')\n"
    )
    return path


def test_a_decorated_function_of_a_file_keeps_its_options(file):
    assert target.function(f"{file}::train").options.cores == 3


def test_a_plain_function_of_a_file_is_found(file):
    assert target.function(f"{file}::plain")() == 1


def test_a_file_is_imported_under_its_own_name(file):
    assert target.function(f"{file}::plain").__module__ == file.stem


def test_a_file_of_a_package_is_imported_as_its_part(tmp_path, monkeypatch):
    package = tmp_path / "pack_of_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("VALUE = 7\n")
    (package / "work.py").write_text("from .other import VALUE\ndef f():\n    return VALUE\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    found = target.function(f"{package}/work.py::f")

    assert (found(), found.__module__) == (7, "pack_of_test.work")


def test_a_wrong_function_names_the_nearest(file):
    with pytest.raises(ConfigError, match=r"no function 'trian'; did you mean train\?"):
        target.function(f"{file}::trian")


def test_a_wrong_file_names_the_nearest(file):
    with pytest.raises(ConfigError, match=f"did you mean {file.name}"):
        target.function(f"{file.with_name(file.name.replace('mine', 'mien'))}::train")


@pytest.mark.parametrize("text", ["train", "train.py", "::train", "train.py::"])
def test_a_target_without_file_or_function_is_refused(text):
    with pytest.raises(ConfigError, match="names no function"):
        target.function(text)


def test_a_class_is_no_function(file):
    with pytest.raises(ConfigError, match="is not a function"):
        target.function(f"{file}::Kind")


def test_a_file_named_like_a_loaded_module_is_refused(tmp_path):
    (tmp_path / "json.py").write_text("def f(): pass\n")

    with pytest.raises(ConfigError, match="already in use"):
        target.function(f"{tmp_path}/json.py::f")


def test_a_file_that_fails_shows_the_users_lines_alone(tmp_path, monkeypatch, capsys):
    path = tmp_path / "broken_of_test.py"
    path.write_text("def f():\n    return 1\n\nprint(undefined_name)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    code = main(["run", f"{path}::f"])

    said = capsys.readouterr().err
    assert code == 2
    assert "NameError: name 'undefined_name' is not defined" in said
    assert "line 4" in said
    assert "cli/target.py" not in said


def test_a_file_that_calls_at_its_top_level_is_told_where_to_put_the_call(tmp_path, monkeypatch, capsys):
    path = tmp_path / "unguarded_of_test.py"
    path.write_text("from clusterfn import cluster\n@cluster(host='nowhere')\ndef f():\n    return 1\nf()\n")
    config = tmp_path / "clusterfn.yml"
    config.write_text("hosts: {}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    monkeypatch.syspath_prepend(str(tmp_path))

    main(["run", f"{path}::f"])

    said = capsys.readouterr().err
    assert "there is no host 'nowhere'" in said
    assert 'put the call below: if __name__ == "__main__":' in said
    assert "decorator.py" not in said


def test_a_file_that_leaves_python_when_imported_is_no_success(tmp_path, monkeypatch, capsys):
    path = tmp_path / "leaving_of_test.py"
    path.write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert main(["run", f"{path}::f"]) == 2
    assert "SystemExit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "value"),
    [("3", 3), ("1e-3", 1e-3), ("-2", -2), ("[1, 2]", [1, 2]), ("None", None), ("cat", "cat"), ("a b", "a b"),
     ("'3'", "3"), ("data/x.csv", "data/x.csv"), ("", ""), ("a-b=3", "a-b=3")],
)  # fmt: skip
def test_a_word_is_a_literal_or_a_text(word, value):
    assert target.arguments([word]) == ((value,), {})


def test_name_and_value_make_a_keyword():
    assert target.arguments(["1", "lr=1e-3", "name=cat", "path=a=b"]) == (
        (1,),
        {"lr": 1e-3, "name": "cat", "path": "a=b"},
    )


def test_a_keyword_given_twice_is_refused():
    with pytest.raises(ConfigError, match="twice"):
        target.arguments(["a=1", "a=2"])


@pytest.mark.parametrize("words", [[], ["1", "2", "3"], ["1", "rate=2"]])
def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent(file, words, capsys):
    assert main(["run", f"{file}::train", *words]) == 2
    assert "it is train(lr, layers=2)" in capsys.readouterr().err


def test_remote_text_cannot_move_the_cursor():
    assert screen.clean("a\x1b[2J\x07b\r\nc\u202ed") == "a[2Jb cd"


def test_table_cells_are_cleaned_and_aligned():
    shown = screen.table(("ID", "NAME"), [("7f3a", "train"), ("1", "\x1b[31mred")])

    assert shown == "ID    NAME\n7f3a  train\n1     [31mred"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_alone(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    assert screen.coloured("x", "red", Terminal()) == "\x1b[31mx\x1b[0m"
    assert screen.coloured("x", "red", io.StringIO()) == "x"


def test_no_color_is_honoured(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    assert screen.coloured("x", "red", Terminal()) == "x"


def test_an_error_of_ours_is_its_name_and_its_lines():
    error = OutOfMemory("too much", host="lab8", job="7f3a", hint="ask for more")

    told = complaint.of(error)

    assert told == complaint.Complaint("OutOfMemory: too much\n  where: host lab8, job 7f3a\n  next:  ask for more", 1)


def test_a_mistake_in_the_configuration_leaves_with_two():
    assert complaint.of(ConfigError("no")).code == 2


def test_loud_shows_our_traceback_too():
    try:
        raise ClusterfnError("no")
    except ClusterfnError as error:
        told = complaint.of(error, loud=True)

    assert "Traceback (most recent call last)" in told.text
    assert told.text.endswith("ClusterfnError: no")


def test_an_exception_of_the_function_is_shown_as_the_host_told_it():
    error = ValueError("boom")
    error.__cause__ = RemoteTraceback('"""on lab8, job 7f3a\nTraceback (…)\nValueError: boom\n"""')

    told = complaint.of(error)

    assert told == complaint.Complaint("on lab8, job 7f3a\nTraceback (…)\nValueError: boom", 1)


def test_what_an_exception_learnt_here_is_shown_below_the_remote_traceback():
    error = FileNotFoundError(2, "not there, but it is here", "x.csv")
    error.__cause__ = RemoteTraceback('"""on lab8\nFileNotFoundError: not there\n"""')

    assert "but it is here" in complaint.of(error).text.splitlines()[-1]


def test_an_error_that_nobody_foresaw_is_not_hidden():
    assert complaint.of(ZeroDivisionError("ours")) is None


@pytest.mark.parametrize(("ids", "digits"), [(["7f3a11", "90aa33"], 4), (["7f3a11", "7f3a22"], 5), ([], 4)])
def test_ids_are_shown_as_short_as_they_are_unambiguous(ids, digits):
    assert jobs.shortest(ids) == digits


def test_what_json_cannot_say_is_refused_by_name():
    with pytest.raises(ClusterfnError, match="cannot be written as JSON"):
        written({1, 2}, as_json=True)


def test_json_keeps_text_readable():
    assert written({"name": "Zoë"}, as_json=True) == '{"name": "Zoë"}'
