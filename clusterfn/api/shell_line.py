"""Let the line of a shell take values from variables, so that no value ever becomes a part of the line.

`{lr}` is one text, as `"$lr"` would be: a word, or a part of one, also within quotes. Where a shell would take no text,
or evaluate it, or where the line before is more than this module reads, clusterfn rejects it: `lr={lr};` at the
beginning of the line helps. What comes after the last place is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.errors import ConfigError

# `{{lr}}` is the text `{lr}`, and `${lr}` is the shell's own.
PLACE = re.compile(r"(?<!\$)(?:\{(\{[A-Za-z_]\w*\})\}|\{([A-Za-z_]\w*)\})", re.ASCII)
# The worker sets these.
_VARIABLE = "${CLUSTERFN_VALUE_%s}"
# bash and dash see the same end of each of these. No place may be within one.
_CLOSED = r"\$?\(\([^'\"`\\()\#<]*\)\)|\$\{[^'\"`\\(){}]*\}|`[^`\\]*`"
_DOUBLE = re.compile(
    rf"(?P<escape>\\.)|(?P<closed>{_CLOSED})|(?P<close>\")|(?P<open>\$\((?!\())|[^`\\$\"]|\$(?![(\[{{])", re.DOTALL
)
_PLAIN = re.compile(
    rf"""(?P<comment>(?<![^\s;&|()<>])\#[^\n]*)|(?P<escape>\\.)
    |(?P<closed>{_CLOSED}|\[\[\s[^'"`\\()\#]*?\s\]\](?=[\s;&|)]|$)|\$'[^'\\]*')
    |(?P<single>'[^']*')|(?P<open>"|\$?\((?!\())|(?P<close>\))
    |(?P<space>\\\n|<<<|[<>]&|&>|>\||[ \t<>](?!<)|<(?=\())|(?P<end>[;&|\n])
    |[^\\`'"()<>\[$]|\[(?!\[\s)|\$(?![(\[{{'])""",
    re.DOTALL | re.VERBOSE,
)
_WITHIN = {"$(": "arithmetic", "((": "arithmetic", "${": "${ }", "$'": "$' '", "[[": "[[ ]]", "`": "backticks"}
_NAME = r"(?:(?:r?ba|da|a|k|mk|z)?sh[\d.]*|\$\{?(?:SHELL|BASH)\b[^\s\"')}]*)[\"')}]*"
_SHELL = rf"(?:^|[\s/\"'({{]){_NAME}"
_OPTIONS_OF_SHELL = re.compile(_SHELL + r"((?:\s+(?:[-+]\w*[oO]\s+\w+|--(?:rcfile|init-file)\s+\S+|[-+][-\w]*))+)\s+$")
_READS_CODE = re.compile(_SHELL + r"(?!\w)|(?:^|\s)(?:source|\.)\s")
# Programs that give words to a shell, perhaps on another machine; commands of a shell that evaluate their words.
_GIVES_CODE = re.compile(
    r"(?:^|[\s/])(?:ssh|watch|parallel|tmux|env\s.*-S|sbatch\s.*--wrap\b"
    r"|(?:su|runuser|sg|flock|script|fish|t?csh)\s.*-\w*c)[\s=]", re.DOTALL,
)  # fmt: skip
_BEFORE = (
    r"\s*(?:(?:if|then|elif|else|while|until|do|!|\{|time(?:\s+-p)?|(?:command|builtin)(?:\s+-\w+)*"
    r"|\w+=(?:\"[^\"]*\"|'[^']*'|[^\s\"'])*|\d*[<>]+&?\s*[^\s<>]+)\s+)*"
)
_EVALUATES = re.compile(
    _BEFORE + r"(?:eval|let|trap|alias|unset|read|getopts|mapfile|readarray|compgen|printf\s+-v|"
    r"(?:test|\[)\s.*-[vR])\s", re.DOTALL,
)  # fmt: skip
_DECLARES = re.compile(_BEFORE + r"(?:declare|typeset|local|readonly|export)\s", re.DOTALL)
_SET = re.compile(r"(?!(?:S?RANDOM|SECONDS|LINENO|HISTCMD|OPTIND|PS4|(?:BASH_)?ENV)\+?=)\w+\+?=", re.ASCII)
# By these, bash evaluates texts elsewhere in the line.
_FAR_AWAY = re.compile(
    r"\b(?:declare|typeset|local|readonly|export)(?:\s+-\w+)*\s+-\w*[aAin]|\(.*\bcase\s"
    r"|\|&?(?:[\s({\"']|(?:env|nohup|sudo|nice|exec|command|time|srun|xargs)\s(?:[^|;&\n]*?\s)?)*(?:\S*/)?"
    rf"{_NAME}(?:(?:\s+-\S*)*\s*(?:$|[;&|)<>\n])|\s+(?:-\S+\s+)*-\w*s\b)"
    rf"|\|[^|;&\n]*\b(?:ssh\s|xargs\s[^|;&\n]*\b{_NAME}\s+-\w*c\b)", re.DOTALL,
)  # fmt: skip
_VANISHES = re.compile(r"[\\'\"]|\$\w+|\$\{[^}]*\}|`[^`]*`|\$\([^()]*\)|\d*[<>]+&?[ \t]*[^\s<>]+")
_EVALUATED = "where a shell evaluates it"


@dataclass
class _Frame:
    """What surrounds a part of a line: its end, where its command and word begin, and why no place is in it."""

    closing: str
    begin: int
    word: int
    why: str = ""


def fill_line(line: str, names: Sequence[str]) -> str:
    """Return the line with a variable in place of each `{name}`.

    Raises:
        ConfigError: A place is where no text can be, or after what this function does not read.

    Example:
        >>> fill_line("echo '{a}' {b} > {b}.txt", ["a", "b"])
        'echo \\'\\'"${CLUSTERFN_VALUE_a}"\\'\\' "${CLUSTERFN_VALUE_b}" > "${CLUSTERFN_VALUE_b}".txt'
    """
    last = max((found.end() for found in _places(line, names)), default=0)
    if far_away := last and _FAR_AWAY.search(line):
        raise _rejected(line, 0, names, f"in a line with {in_one_line(far_away[0][-20:]).strip()!r}")
    at, stack, parts = 0, [_Frame("", 0, 0)], []
    while at < last:
        frame, found = stack[-1], PLACE.match(line, at)
        is_double = frame.closing == '"'
        if found and (found[2] or found[1][1:-1]) in names:
            if found[2] and (why := _reason(line, frame, at)):
                raise _rejected(line, at, names, why)
            parts.append(fill_text(found[0], names, _VARIABLE if is_double else f'"{_VARIABLE}"'))
            at = found.end()
            continue
        token = (_DOUBLE if is_double else _PLAIN).match(line, at)
        if token is None:
            raise _rejected(line, at, names, f"after {line[at : at + 2].strip()!r}")
        start, text, kind, at = at, token[0], token.lastgroup, token.end()
        if kind == "escape" and any(found.start() == at - 1 for found in _places(line, names, at - 1)):
            raise _rejected(line, at - 1, names, "after a backslash")
        why = _reason(line, frame, start) if kind in ("single", "closed", "open") else ""
        if any(_places(text, names)) and (kind == "closed" or (kind == "single" and why)):
            within = next((what for sign, what in _WITHIN.items() if text.startswith(sign)), "")
            raise _rejected(line, start, names, why or f"within {within}")
        if kind == "single":
            text = fill_text(text, names, f"'\"{_VARIABLE}\"'")
        elif kind == "open" and text == '"':
            stack.append(_Frame('"', frame.begin, frame.word, why))
        elif kind == "open":
            is_code = line[start - 1 : start] == "<" and _READS_CODE.search(line[frame.begin : at])
            stack.append(_Frame(text, at, at, _EVALUATED if is_code else why))
        elif kind == "close" and len(stack) > 1:
            stack.pop()
        if kind == "end" or (kind == "close" and frame.closing in ("", "(")):
            stack[-1].begin = stack[-1].word = at
        elif kind == "space":
            frame.word = at
        parts.append(text)
    return "".join([*parts, fill_text(line[at:], names)])


def fill_text(text: str, names: Sequence[str], given: str = "{%s}") -> str:
    """Put `given` in place of each `{name}`; `{{name}}` becomes the text `{name}`."""

    def one(found: re.Match[str]) -> str:
        if found[2] in names:
            return given % found[2]
        return found[1] if found[1] and found[1][1:-1] in names else found[0]

    return PLACE.sub(one, text)


def places_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the names of all places, each once."""
    return tuple(dict.fromkeys(found[2] for text in texts for found in PLACE.finditer(text) if found[2]))


def fill_words(words: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Fill the words that a shell reads as code, as `sh -c` does; the worker fills the others, which are texts."""
    filled = list(words)
    for number, word in enumerate(words):
        command = " ".join([*words[:number], ""])
        if _is_code(command):
            # The worker fills this word too, and so takes the doubled braces away.
            filled[number] = fill_text(fill_line(word, names), names, "{{%s}}")
        elif _GIVES_CODE.search(command) and any(_places(word, names)):
            raise _rejected(word, 0, names, _EVALUATED)
    return tuple(filled)


def _places(text: str, names: Sequence[str], at: int = 0) -> Iterator[re.Match[str]]:
    return (found for found in PLACE.finditer(text, at) if found[2] in names)


def _reason(line: str, frame: _Frame, at: int) -> str:
    """Return why a value cannot be in the present word; "" if it can."""
    if frame.closing == '"':
        return frame.why
    command, word = line[frame.begin : frame.word], line[frame.word : at]
    if "[" in word or "{" in re.sub(r"\$?\{\w+\}|\{\{\w+\}\}", "", word):
        return "after a bracket or a brace in a word"
    is_special = re.match(r"\w+\+?=", word) is not None and not _SET.match(word)
    # A command may be quoted, and what is before it may be empty.
    is_evaluated = any(_is_evaluated(text, word) for text in (command, _VANISHES.sub("", command)))
    return frame.why or (_EVALUATED if is_special or is_evaluated else "")


def _is_evaluated(command: str, word: str) -> bool:
    return bool(
        _EVALUATES.match(command)
        or _GIVES_CODE.search(command + word)
        or _is_code(command)
        or (command.rstrip().endswith("<<<") and _READS_CODE.search(command))
        or (_DECLARES.match(command) and not _SET.match(word))
    )


def _is_code(command: str) -> bool:
    """Whether the next word is code for a shell."""
    options = _OPTIONS_OF_SHELL.search(command)
    return options is not None and re.search(r"\s-\w*c", options[1]) is not None


def _rejected(line: str, at: int, names: Sequence[str], why: str) -> ConfigError:
    """Return the error about the first place from there on."""
    found = next(_places(line, names, at))
    name, first = found[2], max(0, found.start() - 30)
    near = in_one_line(f"{'…' if first else ''}{line[first : found.end() + 20]}")
    hint = f"begin the line with export {name}={found[0]}; and use the variable ${name} there"
    if why == _EVALUATED:
        hint = f"pass it as a word: to a script, or bash -c '... \"$1\" ...' bash {found[0]}"
    elif "[[" in why:
        hint = "write [ ] with single brackets"
    elif "arithmetic" in why:
        hint = f"calculate in a program, as in $(expr {found[0]} + 1)"
    return ConfigError(f"{found[0]} cannot be used {why}: {near}", hint=hint)
