"""A state is published when it changes and once in a while."""

from __future__ import annotations

from agent.system.on_change import OnChange

START, SECOND = 10**18, 10**9


def test_a_state_is_published_once_until_it_changes() -> None:
    """The first call publishes every key, later ones those with a new state."""
    states = OnChange[str, int]()
    assert states.due(START, {"m": 3, "n": 5}) == ["m", "n"]
    assert states.due(START + SECOND, {"m": 3, "n": 5}) == []
    assert states.due(START + 2 * SECOND, {"m": 3, "n": 7, "o": 11}) == ["n", "o"]


def test_every_state_is_repeated() -> None:
    """After the repeat interval all keys are due once, also where the clock was set back."""
    states = OnChange[str, int](repeat_ns=10 * SECOND)
    states.due(START, {"m": 3})
    assert not states.repeats(START + 9 * SECOND)
    assert states.due(START + 10 * SECOND, {"m": 3}) == ["m"]
    assert states.due(START + 19 * SECOND, {"m": 3}) == []
    assert states.due(START - 4 * SECOND, {"m": 3}) == ["m"]


def test_a_key_that_was_left_out_is_new_again() -> None:
    """What one call leaves out is forgotten, and published when it comes back."""
    states = OnChange[str, int]()
    states.due(START, {"m": 3, "n": 5})
    assert states.due(START + SECOND, {"n": 5}) == []
    assert dict(states.last) == {"n": 5}
    assert states.due(START + 2 * SECOND, {"m": 3, "n": 5}) == ["m"]
