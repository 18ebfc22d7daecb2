"""Lemons: shrinkage, base rates, and how much of what is named is expected to be chance."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.history.lemons import fit_prior, rank_lemons

HOURS = 672.0


def test_one_incident_makes_no_lemon() -> None:
    """In a fleet of equal machines one incident of one of them names none."""
    counts = np.zeros(97)
    counts[13] = 1
    assert rank_lemons(counts, np.full(97, HOURS)).named == 0


def test_a_machine_far_above_the_others_is_named() -> None:
    """Nine incidents among machines with none or one name that machine alone, nearly for certain."""
    counts = np.tile([0.0, 0, 0, 1], 30)
    counts[41] = 9
    found = rank_lemons(counts, np.full(120, HOURS))
    assert (found.named, found.order[0]) == (1, 41)
    assert found.chance[41] > 0.95
    assert found.false_share < 0.05


def test_rates_are_pulled_towards_the_base_rate() -> None:
    """A rate seen over a short time moves further to the base rate than the same rate seen for long."""
    counts, hours = np.array([1.0, 10.0, *[1.0] * 40]), np.array([67.2, 672.0, *[672.0] * 40])
    found = rank_lemons(counts, hours)
    raw = 10 / 672
    assert found.prior.base_rate < found.rate[0] < found.rate[1] < raw


def test_a_fleet_without_incidents() -> None:
    """Without any incident nothing is named, and the base rate is small but above zero."""
    found = rank_lemons(np.zeros(6), np.full(6, 50.0))
    assert found.named == 0
    assert 0 < found.prior.base_rate < 1 / 300


def test_the_prior_of_drawn_rates_is_found() -> None:
    """Shape and mean of the distribution that counts were drawn from are recovered."""
    dice = np.random.default_rng(11)
    rates = dice.gamma(0.8, 1 / 400.0, 3000)
    prior = fit_prior(dice.poisson(rates * 900.0).astype(float), np.full(3000, 900.0))
    assert prior.shape == pytest.approx(0.8, rel=0.15)
    assert prior.base_rate == pytest.approx(0.002, rel=0.1)


def test_the_stated_share_of_false_lemons_holds() -> None:
    """Over many drawn fleets the machines named that are none are no larger a share than is stated."""
    dice, stated, false, named = np.random.default_rng(5), 0.0, 0, 0
    for _ in range(40):
        rates = dice.gamma(0.5, 1 / 500.0, 200)
        found = rank_lemons(dice.poisson(rates * HOURS).astype(float), np.full(200, HOURS))
        chosen = found.order[: found.named]
        stated, named = stated + found.false_share * found.named, named + found.named
        false += int((rates[chosen] <= 2 * 0.001).sum())
    assert named > 200
    assert false / named == pytest.approx(stated / named, abs=0.05)
