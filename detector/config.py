"""The few numbers the detector is built on, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Samples = Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class StragglerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the straggler detector; an excess is a share of time, 0.16 is 16 % of it."""

    smoothing_seconds: Positive = 3.0
    """Time constant of the EWMA that takes the noise out of the wait signals."""
    baseline_seconds: Positive = 300.0
    """Time constant of the EWMA that is the baseline."""
    warmup_samples: Samples = 15
    """Samples that make a baseline."""
    min_excess: Positive = 0.16
    """The least excess over the baseline that counts, summed over the communicators of a process."""
    max_gain: Positive = 1.5
    """The most that a second adds to the CUSUM, in seconds at twice `min_excess`."""
    threshold_seconds: Positive = 8.0
    """CUSUM threshold: seconds at twice `min_excess`."""
    min_samples: Samples = 5
    """The fewest samples that raise an alarm."""
    max_excess_per_wait: Positive = 4.0
    """A process's excess counts up to so many times the excess of what the other ranks wait."""
    slow_sender_share: Positive = 0.25
    """A straggler is called a slow sender if sending is more than this share of its excess."""
    machine_ratio: Positive = 1.5
    """A straggler's excess is so many times that of every other machine of its task."""
    tie_ratio: Positive = 0.75
    """Ranks of one machine within this ratio of its largest excess are distinguished by steps ..."""
    tie_step_weight: Positive = 0.25
    """... and a step weighs so much."""
    rank_decay: Positive = 0.1
    """By so many ranks a sample the usual number of reporting ranks fades."""


@dataclass(frozen=True, slots=True)
class Config:
    """Durations are seconds of data time unless the name says steps."""

    fewest_peers: int = 4
    """Below four entities a median cannot tell which of them is the odd one."""
    smooth_s: float = 8.0
    """Readings are averaged over this long: about one iteration, so that its phases cancel."""
    smooth_steps_least: int = 3
    """Also with coarse steps: with three values the highest and lowest can be left out."""
    hold_steps: float = 2.5
    """A reading stands for this long: bridges jitter, half a second of clock error and one lost row."""
    memory_steps: int = 300
    """Length of the baseline's memory; long against a fault's onset, short against a task."""
    warm_steps: int = 20
    """Steps before a baseline is used."""
    settle_steps: int = 120
    """Steps for which a task may still be starting: a new level resets the baseline."""
    sigmas: float = 4.0
    """Deviations from the baseline below this many standard deviations of healthy readings are noise."""
    peer_steps: int = 100
    """It takes this many steps to see whether a metric that no catalogue knows has peers at all ..."""
    explained_least: float = 0.25
    """... which it has not when they explain less than this share of its movement ..."""
    persists_least: float = 0.3
    """... and what is left is correlated with itself this much beyond the smoothing."""
    trust_steps: int = 1000
    """What cleared by itself is forgotten over this many steps."""
    unknown_share: float = 0.05
    """For a metric no catalogue knows: least difference as a share of the peers' value ..."""
    unknown_spread: float = 0.5
    """... and as a share of how much the metric moves over time anyway."""
    nats: float = 6.0
    """CUSUM gain in nats per independent sample for a deviation of 2× the threshold."""
    independent_s: float = 20.0
    """Healthy disturbances last about this long, so readings closer than this are not independent."""
    shortest_s: float = 60.0
    """No soft verdict comes sooner, however strong: bursts of other work on a machine are that long."""
    prompt_tables: tuple[str, ...] = ("nccl",)
    """Tables that speak of the task's own progress: not disturbed by other work on the machine ..."""
    prompt_factor: float = 0.3
    """... so they need this share of the two durations above."""
    strength_most: float = 6.0
    """Deviations beyond this many bounds say no more than this."""
    false_alarm_days: float = 7.0
    """Healthy days per false verdict in one task: sets the alarm threshold."""
    calibration: str = ""
    """A file of `peerwatch calibrate`: alarm thresholds from healthy recordings of this fleet."""
    caution: dict[str, float] = field(default_factory=dict)
    """Multiplier on the alarm threshold, by table or method (default 1.0; `*` for the rest)."""
    spread_share: float = 0.2
    """When more of the machines than this deviate at once, it is the task and not a machine."""
    still_s: float = 8.0
    """A communicator that moves nothing for this long may be stuck ..."""
    still_gaps: float = 4.0
    """... if that is also this many times its longest usual gap."""
    sure_s: float = 30.0
    """A rank that never entered is a warning until then: it may be writing a checkpoint for all."""
    silent_s: float = 30.0
    """A machine without a row for this long, and ten of its periods, is silent; twice that is critical."""
    grace_s: float = 3.0
    """How long to see whether the other ranks exit too before an exit counts as a fault."""
    forget_s: float = 600.0
    """An incident that rests on one event closes after this long."""
    lag_s: float = 2.0
    """Live, the newest readings are judged this late: by then all machines' rows are in."""
    overlap_s: float = 5.0
    """Live, so much is read again each time, for rows that came later still."""
    straggler: StragglerConfig = field(default_factory=StragglerConfig)
    """`[detector.straggler]`: the process that its peers wait for in every iteration."""
    zoom_s: float = 20.0
    """Live, for so long an agent is asked to read what is suspect many times a second ..."""
    zoom_hertz: float = 20.0
    """... and how many times: enough to see which device moves first."""
    history_s: float = 300.0
    """Live, the detector begins this far back, so that it has a baseline when it starts."""

    def caution_of(self, what: str) -> float:
        """Multiplier on the alarm threshold of this table or method; `*` is for those not named."""
        return self.caution.get(what, self.caution.get("*", 1.0))
