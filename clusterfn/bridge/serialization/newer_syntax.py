"""Reject source that an older Python cannot compile.

The parser itself knows many versions (`feature_version`), but not how f-strings, stars and `:=` were written before.
"""

from __future__ import annotations

import ast
import io
import sys
import token
import tokenize
from collections.abc import Iterator

from . import source
from .source import NoSource, Snippet

# Python has these nodes since 3.10, 3.11 and 3.12.
_NEWER = ("Match", "TryStar", "TypeAlias")
_FREE_FSTRINGS, _STARS, _BARE_WALRUS = (3, 12), (3, 11), (3, 10)
# Before Python 3.12, an f-string is one token, whose quotes end it.
_START, _MIDDLE, _END = (getattr(token, f"FSTRING_{part}", None) for part in ("START", "MIDDLE", "END"))
_PREFIXES = "fFrRbBuU"
_WITHOUT = "%s (%s, line %s): Python %d.%d does not have this syntax: %s"


def reject_newer(snippet: Snippet, version: tuple[int, int]) -> None:
    """Reject syntax that is too new for that version.

    Raises:
        NoSource: It uses syntax that the version does not have; names the line.
    """
    if version >= sys.version_info[:2]:
        return
    try:
        node = source.parse(snippet, version)
    except SyntaxError as error:
        # The parser names the line after a statement that an older Python lacks.
        nodes = ast.walk(source.parse(snippet))
        newer = (each for each in nodes if type(each).__name__ in _NEWER or getattr(each, "type_params", None))
        line = getattr(next(newer, None), "lineno", None) or error.lineno
        raise NoSource(_WITHOUT % (snippet.name, snippet.file, line, *version, error.msg)) from None
    found = next(_newer(snippet, node, version), None)
    if found is not None:
        raise NoSource(_WITHOUT % (snippet.name, snippet.file, found[0], *version, found[1]))


def _newer(snippet: Snippet, node: ast.AST, version: tuple[int, int]) -> Iterator[tuple[int, str]]:
    """Yield the line of each place that the version cannot read, and what is there."""
    if version < _FREE_FSTRINGS and _START is not None:
        yield from _in_fstrings(snippet)
    for each in ast.walk(node):
        if version < _STARS and _has_star(each):
            yield getattr(each, "lineno", snippet.line), "a star in an index or an annotation"
        index = each.slice if isinstance(each, ast.Subscript) else None
        if version < _BARE_WALRUS and isinstance(index, ast.NamedExpr) and not _before(snippet, index).endswith("("):
            yield index.lineno, "':=' in an index without parentheses"


def _has_star(node: ast.AST) -> bool:
    if isinstance(node, ast.arg):
        return isinstance(node.annotation, ast.Starred)
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return False
    index = node.slice
    # A tuple in parentheses begins before its first element, and is no newer syntax.
    is_bare = bool(index.elts) and (index.lineno, index.col_offset) == (index.elts[0].lineno, index.elts[0].col_offset)
    return is_bare and any(isinstance(each, ast.Starred) for each in index.elts)


def _before(snippet: Snippet, node: ast.expr) -> str:
    """Return what precedes an expression in its line, without blanks at the end."""
    line = snippet.text.split("\n")[node.lineno - snippet.line]
    return line.encode()[: node.col_offset].decode().rstrip()


def _in_fstrings(snippet: Snippet) -> Iterator[tuple[int, str]]:
    """Yield what an f-string of an older Python must not have in its braces."""
    # The quotes of the f-strings around the present token.
    quotes: list[str] = []
    for each in tokenize.generate_tokens(io.StringIO(source.alone(snippet)).readline):
        around = quotes[:-1] if each.type == _MIDDLE else quotes
        line = each.start[0] + snippet.line - 2
        if each.type == _END:
            quotes.pop()
        elif around:
            if any(quote in each.string for quote in around):
                yield line, "an f-string has its own quotes in its braces"
            elif "\\" in each.string:
                yield line, "an f-string has a backslash in its braces"
            elif each.type == token.COMMENT:
                yield line, "an f-string has a comment in its braces"
            elif each.type in (token.NL, token.NEWLINE) and len(around[-1]) == 1:
                yield line, "an f-string has a line break in its braces"
        if each.type == _START:
            quotes.append(each.string.lstrip(_PREFIXES))
