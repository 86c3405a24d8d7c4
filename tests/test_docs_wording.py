"""The documents use plain English: GPU and not card, no word that a native writer would not use, short sentences."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
MOST_WORDS = 25
MOST_LONG_SENTENCES = 40  # most of them in the protocol
CARD = re.compile(r"\bcards?\b", re.IGNORECASE)
AVOIDED = re.compile(
    r"\b(whoever|whomever|nobody|anew|aloud|heard|(is|are) (told|said)|gives? way|lets? go"
    r"|go(es|ing)? on|went on|stands?(?!-)|stood|lies|lay)\b",
    re.IGNORECASE,
)


def prose(page: Path) -> list[str]:
    """Return the paragraphs, list items and table cells of a page, with CODE for each piece of code."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(    |<!--).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"``.+?``|`[^`]+`", "CODE", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^(#|\||[-*] |\d+\. )", r"\n\n\1", text, flags=re.MULTILINE)
    parts = (part for block in re.split(r"\n\s*\n", text) for part in re.split(r" \| |^\||\|$", block.strip()))
    return [" ".join(part.split()) for part in parts if part.strip()]


def sentences(page: Path) -> list[str]:
    return [each for part in prose(page) for each in re.split(r"(?<=[.!?])[)*\"”]*\s+(?=[^a-z]|clusterfn)", part)]


def long_sentences(page: Path) -> list[str]:
    return [each for each in sentences(page) if len(re.findall(r"[\w’'-]*\w", each)) > MOST_WORDS]


def test_no_page_uses_a_word_that_we_avoid():
    parts = [(page.relative_to(ROOT).as_posix(), part) for page in PAGES for part in prose(page)]

    assert [each for each in parts if CARD.search(each[1]) or AVOIDED.search(each[1])] == []


def test_few_sentences_are_long():
    long = [f"{page.name}: {each}" for page in PAGES for each in long_sentences(page)]

    assert len(long) <= MOST_LONG_SENTENCES, "\n".join(long)
