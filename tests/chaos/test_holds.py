"""The checker of holds finds each kind of violation in a forged journal, and nothing in a good one."""

from __future__ import annotations

from tests.chaos import holds
from tests.chaos.holds import Asked, Seen, Turn

UIDS = {"ada": 1, "bob": 2}


def turn(job: str, order: int, taken: float | None, released: float | None, *cards: str, **more: object) -> Turn:
    """One of ada's, in ms of submission; it asks for as many cards as it names."""
    facts = {"user": "ada", "asked": Asked(len(cards)), "waits": order / 1000, **more}
    return Turn(job=job, order=order * 10**6, taken=taken, released=released, cards=cards, **facts)  # type: ignore[arg-type]


SPOOLERS = tuple(f"{holds.SPOOL}{uid}/q" for uid in UIDS.values())


def seen(
    *turns: Turn,
    wait: tuple[float, float, str] | None = None,
    until: float = 20.0,
    spoolers: tuple[str, ...] = SPOOLERS,
) -> Seen:
    """What an honest watcher sees ten times a second of such jobs, of the users' spoolers, and of a name that somebody
    who waits has bound."""
    found = Seen()
    for tick in range(int(until * 10)):
        when = tick / 10 + 0.01
        names = {holds.GPU + card for each in turns for card in each.cards if _holds(each, when)} | set(spoolers)
        if wait and wait[0] <= when < wait[1]:
            names.add(wait[2])
        found.add(when, names)
    return found


def _holds(each: Turn, when: float) -> bool:
    return each.taken is not None and each.taken - 0.05 <= when < (each.released or each.taken + 2)


def test_a_gpu_that_goes_from_hand_to_hand_is_held_once() -> None:
    good = [turn("1", 1, 1.0, 2.0, "a", "b"), turn("2", 2, 2.0, 3.0, "a"), turn("3", 3, 2.5, 3.0, "b")]
    saw = seen(*good)
    assert holds.doubly_held(good, saw) == []
    assert holds.unwitnessed(good, saw) == []
    assert holds.never_released(good, ()) == []
    assert holds.ill_given(good) == []
    assert holds.overtaken(good, saw, 2, UIDS) == []


def test_a_gpu_in_two_hands_is_found() -> None:
    bad = [turn("1", 1, 1.0, 2.0, "a"), turn("2", 2, 1.9, 3.0, "a")]
    assert holds.doubly_held(bad, Seen()) == ["2 of ada took a at 1.900, and 1 of ada held it until 2.000"]


def test_a_hold_without_an_end_is_found_unless_its_holder_was_killed() -> None:
    assert holds.never_released([turn("1", 1, 1.0, None, "a")], ["2"]) == [
        "1 of ada took ['a'] and never gave them back"
    ]


def test_too_few_gpus_and_one_gpu_twice_are_found() -> None:
    bad = [turn("1", 1, 1.0, 2.0, "a", "a"), turn("2", 2, 1.0, 2.0, "b", asked=Asked(2))]
    assert [line.split(" asked ")[0] for line in holds.ill_given(bad)] == ["1 of ada", "2 of ada"]


def test_a_hold_that_nobody_saw_is_found() -> None:
    invented = turn("1", 1, 1.0, 1.25, "a")
    assert len(holds.unwitnessed([invented], seen(turn("2", 2, 1.0, 1.15, "a")))) == 1


def test_a_gpu_that_another_user_was_on_before_it_was_leased_is_found() -> None:
    mine = turn("1", 1, 5.0, 6.0, "a")
    saw = seen(mine)
    saw.strangers.append(("a", 4.0, 7.0))
    assert holds.beside_strangers([mine], saw) == ["1 of ada took a at 5.000, where a stranger was since 4.000"]


def test_a_later_job_that_left_no_gpu_for_an_older_one_is_found() -> None:
    turns = [turn("0", 0, 0.5, 3.0, "b"), turn("1", 1000, 3.0, 4.0, "a"), turn("2", 2000, 2.5, 3.0, "a")]
    found = holds.overtaken(turns, seen(*turns), 2, UIDS)
    assert found == ["2 of ada was let in at 2.500 before 1 of ada: 0 cards were left"]


def waits_beside(**more: object) -> list[Turn]:
    """An older job of one card waits 3 s longer than a younger one that takes two of eight."""
    return [turn("1", 1000, 5.5, 7.0, "c", **more), turn("2", 2000, 2.5, 8.0, "a", "b")]


def test_an_older_job_that_goes_on_waiting_though_there_is_room_for_both_is_found() -> None:
    turns = waits_beside()
    said = ["1 of ada had room when 2 of ada was let in at 2.500, and waited until 5.500"]
    assert holds.overtaken(turns, seen(*turns), 8, UIDS) == said
    soon = [turn("1", 1000, 2.5 + 0.9 * holds.TURN_S, 4.0, "c"), turns[1]]
    assert holds.overtaken(soon, seen(*soon), 8, UIDS) == []


def test_an_older_job_without_a_ticket_counts_while_its_name_can_be_read() -> None:
    turns = waits_beside(waits=None)
    named = (1.0, 5.5, f"{holds.WAIT}1/1000/1/1/0")
    assert len(holds.overtaken(turns, seen(*turns, wait=named), 8, UIDS)) == 1
    assert holds.overtaken(turns, seen(*turns), 8, UIDS) == []
    saw = seen(*turns, wait=named)
    saw.boot = 2.0  # stamped at 3.0: it came later than the other was let in
    assert holds.overtaken(turns, saw, 8, UIDS) == []


def test_what_is_still_bound_at_the_end_is_found() -> None:
    assert holds.leaked(["other", holds.GPU + "a"]) == ["clusterfn/gpu/a is still bound"]


def test_no_end_two_ends_and_a_wrong_end_are_found() -> None:
    may = {job: frozenset(["returned"]) for job in ("good", "none", "two", "wrong")}
    finals = {"good": ["returned"], "two": ["returned", "returned"], "wrong": ["lost"]}
    assert [line.split()[0] for line in holds.ill_ended(finals, may)] == ["none", "two", "wrong"]


def line(event: str, t: float, job: str = "1", **more: object) -> dict[str, object]:
    return {"event": event, "job": job, "t": t, **more}


def test_a_journal_is_read_as_turns() -> None:
    asked = {"asked": {"gpus": 2, "cores": 1, "memory_mb": 0}, "submitted": 7}
    read = holds.turns(
        "ada",
        [
            line("ticket", 1.0, **asked, reason=""),
            line("ticket", 1.5, job="2", **asked, reason=""),
            line("taken", 2.0, **asked, cards=["a", "b"]),
            line("withdrawn", 2.5, job="2"),
            line("exchanged", 3.0, cards=["c"], released=["a"]),
            line("released", 4.0, cards=["b", "c"]),
            line("taken", 5.0, **asked, cards=["a", "c"]),
        ],
    )
    both = Asked(2)
    assert read == [
        Turn("ada", "1", 7, both, ("a", "b"), 1.0, 2.0, 3.0),
        Turn("ada", "2", 7, both, (), 1.5),
        Turn("ada", "1", 7, both, ("b", "c"), 1.0, 3.0, 4.0, exchanged=True),
        Turn("ada", "1", 7, both, ("a", "c"), None, 5.0),
    ]
