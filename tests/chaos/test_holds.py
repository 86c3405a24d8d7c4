"""The checker of holds finds each kind of violation in a forged journal, and nothing in a good one."""

from __future__ import annotations

from dataclasses import replace

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


def test_a_card_that_goes_from_hand_to_hand_is_held_once() -> None:
    good = [turn("1", 1, 1.0, 2.0, "a", "b"), turn("2", 2, 2.0, 3.0, "a"), turn("3", 3, 2.5, 3.0, "b")]
    saw = seen(*good)
    assert holds.doubly_held(good, saw) == []
    assert holds.unwitnessed(good, saw) == []
    assert holds.never_released(good, ()) == []
    assert holds.ill_given(good) == []
    assert holds.overtaken(good, saw, 2, UIDS) == []


def test_a_card_in_two_hands_is_found() -> None:
    bad = [turn("1", 1, 1.0, 2.0, "a"), turn("2", 2, 1.9, 3.0, "a")]
    assert holds.doubly_held(bad, Seen()) == ["2 of ada took a at 1.900, and 1 of ada held it until 2.000"]


def test_the_card_of_one_who_was_killed_may_be_taken_by_the_next() -> None:
    turns = [turn("1", 1, 1.0, None, "a"), turn("2", 2, 1.4, 3.0, "a")]
    assert holds.doubly_held(turns, seen(*turns)) == []
    assert holds.never_released(turns, ["1"]) == []


def test_a_hold_without_an_end_is_found_unless_its_holder_was_killed() -> None:
    assert holds.never_released([turn("1", 1, 1.0, None, "a")], ["2"]) == [
        "1 of ada took ['a'] and never gave them back"
    ]


def test_too_few_cards_and_one_card_twice_are_found() -> None:
    bad = [turn("1", 1, 1.0, 2.0, "a", "a"), turn("2", 2, 1.0, 2.0, "b", asked=Asked(2))]
    assert [line.split(" asked ")[0] for line in holds.ill_given(bad)] == ["1 of ada", "2 of ada"]


def test_a_hold_that_nobody_saw_is_found() -> None:
    invented = turn("1", 1, 1.0, 1.25, "a")
    assert len(holds.unwitnessed([invented], seen(turn("2", 2, 1.0, 1.15, "a")))) == 1


def test_a_card_that_a_stranger_was_on_before_it_was_marked_is_found() -> None:
    mine = turn("1", 1, 5.0, 6.0, "a")
    saw = seen(mine)
    saw.strangers.append(("a", 4.0, 7.0))
    assert holds.beside_strangers([mine], saw) == ["1 of ada took a at 5.000, where a stranger was since 4.000"]


def test_a_stranger_who_came_after_the_look_or_left_before_the_hold_is_nobodys_fault() -> None:
    mine = turn("1", 1, 5.0, 6.0, "a", "b")
    saw = seen(mine)
    saw.strangers += [("a", 4.99, 7.0), ("b", 3.0, 4.9)]
    assert holds.beside_strangers([mine], saw) == []


def test_a_later_job_that_left_no_card_for_an_older_one_is_found() -> None:
    turns = [turn("0", 0, 0.5, 3.0, "b"), turn("1", 1000, 3.0, 4.0, "a"), turn("2", 2000, 2.5, 3.0, "a")]
    found = holds.overtaken(turns, seen(*turns), 2, UIDS)
    assert found == ["2 of ada was let in at 2.500 before 1 of ada: 0 cards were left"]


def test_an_older_job_that_queued_after_the_younger_one_had_looked_is_not_overtaken() -> None:
    turns = [turn("0", 0, 0.5, 3.0, "b"), turn("1", 1000, 3.0, 4.0, "a", waits=2.47), turn("2", 2000, 2.5, 3.0, "a")]
    assert holds.overtaken(turns, seen(*turns), 2, UIDS) == []
    turns[1].waits = 2.4
    assert len(holds.overtaken(turns, seen(*turns), 2, UIDS)) == 1


def test_who_asks_for_less_or_leaves_room_has_overtaken_nobody() -> None:
    small = [turn("1", 1000, 3.0, 4.0, "a", "b"), turn("2", 2000, 2.5, 3.0, "a")]
    beside = [turn("1", 1000, 2.6, 4.0, "b"), turn("2", 2000, 2.5, 3.0, "a")]
    for turns in (small, beside):
        assert holds.overtaken(turns, seen(*turns), 2, UIDS) == []


def waits_beside(**more: object) -> list[Turn]:
    """An older job of one card waits 3 s longer than a younger one that takes two of eight."""
    return [turn("1", 1000, 5.5, 7.0, "c", **more), turn("2", 2000, 2.5, 8.0, "a", "b")]


def test_an_older_job_that_goes_on_waiting_though_there_is_room_for_both_is_found() -> None:
    turns = waits_beside()
    said = ["1 of ada had room when 2 of ada was let in at 2.500, and waited until 5.500"]
    assert holds.overtaken(turns, seen(*turns), 8, UIDS) == said
    soon = [turn("1", 1000, 2.5 + 0.9 * holds.TURN_S, 4.0, "c"), turns[1]]
    assert holds.overtaken(soon, seen(*soon), 8, UIDS) == []


def test_an_older_job_may_wait_as_much_longer_as_looks_took_then() -> None:
    turns = waits_beside()
    saw = seen(*turns)
    rarely = [look for look, when in enumerate(saw.times) if not 2.5 < when < 5.5 or look % 5 == 0]
    saw.times, saw.names = [saw.times[look] for look in rarely], [saw.names[look] for look in rarely]
    assert holds.overtaken(turns, saw, 8, UIDS) == []


def test_who_is_killed_on_its_turn_has_had_one() -> None:
    turns = [turn("1", 1000, 2.5 + 1.9 * holds.TURN_S, 7.0, "c"), waits_beside()[1]]
    saw = seen(*turns)
    assert len(holds.overtaken(turns, saw, 8, UIDS)) == 1
    saw.deaths.append(2.6)
    assert holds.overtaken(turns, saw, 8, UIDS) == []


def test_an_older_job_without_a_ticket_counts_while_its_name_can_be_read() -> None:
    turns = waits_beside(waits=None)
    named = (1.0, 5.5, f"{holds.WAIT}1/1000/1/1/0")
    assert len(holds.overtaken(turns, seen(*turns, wait=named), 8, UIDS)) == 1
    assert holds.overtaken(turns, seen(*turns), 8, UIDS) == []
    saw = seen(*turns, wait=named)
    saw.boot = 2.0  # stamped at 3.0: it came later than the other was let in
    assert holds.overtaken(turns, saw, 8, UIDS) == []


def test_a_job_that_never_starts_is_not_overtaken() -> None:
    turns = waits_beside()
    turns[0].taken = turns[0].released = None
    assert holds.overtaken(turns, seen(turns[1]), 8, UIDS) == []


def test_on_a_slow_machine_a_turn_takes_longer() -> None:
    turns = waits_beside()
    saw = seen(*(replace(each, taken=each.taken - 1.0) for each in turns if each.taken))
    assert holds.overtaken(turns, saw, 8, UIDS) == []


def test_who_comes_after_others_of_his_own_has_as_much_time_as_they_all() -> None:
    between = [turn(str(number), 900 + number, 2.5 + 0.8 * number, 9.0, "defg"[number]) for number in range(1, 4)]
    turns = [*waits_beside(), *between]
    assert holds.overtaken(turns, seen(*turns), 8, UIDS) == []
    assert len(holds.overtaken(turns[:3], seen(*turns[:3]), 8, UIDS)) == 1


def test_who_has_no_spooler_or_not_always_room_is_not_kept_waiting_by_the_queue() -> None:
    turns = waits_beside()
    assert holds.overtaken(turns, seen(*turns, spoolers=()), 8, UIDS) == []
    for since, until in ((1.0, 2.4), (3.0, 9.0)):  # one has left and nobody may know; one comes before its turn
        saw = seen(*turns)
        saw.strangers += [(card, since, until) for card in "cdefgh"]
        assert holds.overtaken(turns, saw, 8, UIDS) == [], since


def test_a_job_that_was_given_another_card_was_let_in_before() -> None:
    older = turn("1", 1000, 2.0, 9.0, "c")
    moved = turn("1", 1000, 8.0, 9.0, "d", exchanged=True)
    younger = turn("2", 2000, 2.5, 8.0, "a", "b")
    assert holds.overtaken([older, moved, younger], seen(older, younger), 8, UIDS) == []


def test_two_older_jobs_must_both_have_room() -> None:
    turns = [turn("1", 1000, 2.7, 4, "b"), turn("2", 1100, 3, 4, "a"), turn("3", 2000, 2.5, 3, "a")]
    assert len(holds.overtaken(turns, seen(*turns), 2, UIDS)) == 1


def test_the_cards_of_one_who_was_killed_count_until_they_were_seen_free() -> None:
    turns = [turn("0", 0, 1.0, None, "b"), turn("1", 1000, 4.0, 5.0, "b"), turn("2", 2000, 2.5, 6.0, "a")]
    assert len(holds.overtaken(turns, seen(*turns), 2, UIDS)) == 1
    late = [turns[0], turns[1], turn("2", 2000, 3.5, 6.0, "a")]
    assert holds.overtaken(late, seen(*late), 2, UIDS) == []


def test_cards_with_strangers_are_no_room() -> None:
    turns = [turn("1", 1000, 3.0, 5.0, "b"), turn("2", 2000, 2.5, 6.0, "a")]
    saw = seen(*turns)
    assert holds.overtaken(turns, saw, 2, UIDS) == []
    saw.strangers.append(("b", 2.0, 3.0))
    assert len(holds.overtaken(turns, saw, 2, UIDS)) == 1


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
