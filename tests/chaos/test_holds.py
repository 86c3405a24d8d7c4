"""The checker of holds finds each kind of violation in a forged journal, and nothing in a good one."""

from __future__ import annotations

from tests.chaos import holds
from tests.chaos.holds import Seen, Turn


def turn(job: str, taken: float | None, released: float | None, *cards: str, gpus: int | None = None) -> Turn:
    """One of ada's; it asks for as many cards as it names."""
    return Turn("ada", job, len(cards) if gpus is None else gpus, cards, taken, released)


def seen(*turns: Turn) -> Seen:
    """What an honest watcher sees ten times a second of such jobs."""
    found = Seen()
    for tick in range(200):
        when = tick / 10 + 0.01
        found.add(when, {holds.GPU + card for each in turns for card in each.cards if _holds(each, when)})
    return found


def _holds(each: Turn, when: float) -> bool:
    return each.taken is not None and each.taken - 0.05 <= when < (each.released or each.taken + 2)


def test_a_gpu_that_goes_from_hand_to_hand_is_held_once() -> None:
    good = [turn("1", 1.0, 2.0, "a", "b"), turn("2", 2.0, 3.0, "a"), turn("3", 2.5, 3.0, "b")]
    saw = seen(*good)
    assert holds.doubly_held(good, saw) == []
    assert holds.unwitnessed(good, saw) == []
    assert holds.never_released(good, ()) == []
    assert holds.ill_given(good) == []


def test_a_gpu_in_two_hands_is_found() -> None:
    bad = [turn("1", 1.0, 2.0, "a"), turn("2", 1.9, 3.0, "a")]
    assert holds.doubly_held(bad, Seen()) == ["2 of ada took a at 1.900, and 1 of ada held it until 2.000"]


def test_a_hold_without_an_end_is_found_unless_its_holder_was_killed() -> None:
    assert holds.never_released([turn("1", 1.0, None, "a")], ["2"]) == ["1 of ada took ['a'] and never gave them back"]


def test_too_few_gpus_and_one_gpu_twice_are_found() -> None:
    bad = [turn("1", 1.0, 2.0, "a", "a"), turn("2", 1.0, 2.0, "b", gpus=2)]
    assert [line.split(" asked ")[0] for line in holds.ill_given(bad)] == ["1 of ada", "2 of ada"]


def test_a_hold_that_nobody_saw_is_found() -> None:
    invented = turn("1", 1.0, 1.25, "a")
    assert len(holds.unwitnessed([invented], seen(turn("2", 1.0, 1.15, "a")))) == 1


def test_a_gpu_that_another_user_was_on_before_it_was_leased_is_found() -> None:
    mine = turn("1", 5.0, 6.0, "a")
    saw = seen(mine)
    saw.strangers.append(("a", 4.0, 7.0))
    assert holds.beside_strangers([mine], saw) == ["1 of ada took a at 5.000, where a stranger was since 4.000"]


def test_what_is_still_bound_at_the_end_is_found() -> None:
    assert holds.leaked(["other", holds.GPU + "a"]) == ["clusterfn/gpu/a is still bound"]


def test_no_end_two_ends_and_a_wrong_end_are_found() -> None:
    may = {job: frozenset(["returned"]) for job in ("good", "none", "two", "wrong")}
    finals = {"good": ["returned"], "two": ["returned", "returned"], "wrong": ["lost"]}
    assert [line.split()[0] for line in holds.ill_ended(finals, may)] == ["none", "two", "wrong"]


def line(event: str, t: float, job: str = "1", **more: object) -> dict[str, object]:
    return {"event": event, "job": job, "t": t, **more}


def test_a_journal_is_read_as_turns() -> None:
    asked = {"asked": {"gpus": 2, "cores": 1, "memory_mb": 0}}
    read = holds.turns(
        "ada",
        [
            line("ticket", 1.0, **asked),
            line("ticket", 1.5, job="2", **asked),
            line("taken", 2.0, **asked, cards=["a", "b"]),
            line("withdrawn", 2.5, job="2"),
            line("exchanged", 3.0, cards=["c"], released=["a"]),
            line("released", 4.0, cards=["b", "c"]),
            line("taken", 5.0, **asked, cards=["a", "c"]),
        ],
    )
    assert read == [
        Turn("ada", "1", 2, ("a", "b"), 2.0, 3.0),
        Turn("ada", "2", 2),
        Turn("ada", "1", 2, ("b", "c"), 3.0, 4.0),
        Turn("ada", "1", 2, ("a", "c"), 5.0),
    ]
