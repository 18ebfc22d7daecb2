"""95 % intervals of shares and rates: what so few recordings allow to say."""

from __future__ import annotations

from scipy.special import gammaincinv

_Z = 1.959964
Interval = tuple[float, float]


def wilson(right: int, of: int) -> Interval | None:
    """Of a share (E. B. Wilson, JASA 22, 1927); None of nothing."""
    if not of:
        return None
    share, more = right / of, _Z**2 / of
    middle = (share + more / 2) / (1 + more)
    half = _Z * ((share * (1 - share) + more / 4) / of) ** 0.5 / (1 + more)
    return max(0.0, middle - half), min(1.0, middle + half)


def poisson(count: int, exposure: float) -> Interval | None:
    """Of a rate, exact (F. Garwood, Biometrika 28, 1936): `count` events in `exposure`; None without exposure."""
    if exposure <= 0:
        return None
    low = float(gammaincinv(count, 0.025)) if count else 0.0
    return low / exposure, float(gammaincinv(count + 1, 0.975)) / exposure
