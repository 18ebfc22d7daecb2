"""The few numbers the detector is built on, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from store.schema.catalogue import TABLES

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
    usual_iteration_seconds: Positive = 2.0
    """Where iterations are longer than this, smoothing, warm-up and threshold are as many times longer."""
    unread_iteration_seconds: Positive = 16.0
    """What iterations are taken to last where no reading tells."""
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


OLD_NAMES = {
    "fewest_peers": "min_peers",
    "smooth_s": "smoothing_seconds",
    "smooth_steps_least": "min_smoothing_samples",
    "hold_steps": "max_age_steps",
    "memory_steps": "baseline_steps",
    "warm_steps": "warmup_steps",
    "settle_steps": "startup_steps",
    "sigmas": "deviation_sigmas",
    "peer_steps": "comparability_steps",
    "explained_least": "min_explained_variance",
    "persists_least": "max_residual_autocorrelation",
    "trust_steps": "retraction_decay_steps",
    "unknown_share": "unknown_metric_floor",
    "unknown_spread": "unknown_metric_spread_floor",
    "nats": "cusum_gain_nats",
    "independent_s": "correlation_seconds",
    "shortest_s": "min_alarm_seconds",
    "prompt_tables": "fast_tables",
    "prompt_factor": "fast_factor",
    "strength_most": "max_deviation",
    "caution": "threshold_multipliers",
    "spread_share": "common_cause_share",
    "still_s": "min_stall_seconds",
    "still_gaps": "stall_gaps",
    "sure_s": "missing_rank_seconds",
    "silent_s": "silent_seconds",
    "grace_s": "exit_grace_seconds",
    "forget_s": "event_incident_seconds",
    "lag_s": "judging_delay_seconds",
    "overlap_s": "reread_seconds",
    "zoom_s": "zoom_seconds",
    "history_s": "history_seconds",
}
"""Deprecated names of settings in `[detector]`, and those that replace them."""


@dataclass(frozen=True, slots=True)
class Config:
    """Durations are seconds of data time unless the name says steps."""

    min_peers: int = 4
    """Fewest entities of a peer group: with fewer a median cannot identify the outlier."""
    smoothing_seconds: float = 8.0
    """Length of the trimmed mean: about one iteration, so that its phases cancel."""
    min_smoothing_samples: int = 3
    """Fewest readings in the trimmed mean: of three the highest and the lowest are left out."""
    max_age_steps: float = 1.5
    """Largest age of a reading: bridges jitter and half a second of clock error."""
    baseline_steps: int = 300
    """Length of the baseline's EWMA: long compared with an onset, short compared with a task."""
    warmup_steps: int = 20
    """Length of a baseline before it is used."""
    startup_steps: int = 120
    """Time in which a task may still be starting: a new level resets the baseline."""
    deviation_sigmas: float = 4.0
    """Threshold of a deviation in standard deviations of healthy readings."""
    comparability_steps: int = 100
    """Steps after which a metric outside the catalogue is checked for comparability with its peers."""
    min_explained_variance: float = 0.25
    """Least share of its variance that its peers explain; otherwise it is not comparable."""
    max_residual_autocorrelation: float = 0.3
    """Autocorrelation of the residual, beyond the smoothing, from which it is not comparable."""
    retraction_decay_steps: int = 1000
    """Steps over which earlier retractions of a verdict decay."""
    unknown_metric_floor: float = 0.05
    """Floor of a metric outside the catalogue, as a share of the peers' value."""
    unknown_metric_spread_floor: float = 0.5
    """Floor of a metric outside the catalogue, as a share of its variation over time."""
    cusum_gain_nats: float = 6.0
    """CUSUM gain in nats per independent sample for a deviation of 2× the threshold."""
    correlation_seconds: float = 20.0
    """Correlation time of healthy disturbances: readings closer than this are not independent."""
    min_alarm_seconds: float = 60.0
    """Earliest alarm of a deviation: bursts of other work on a machine last this long."""
    fast_tables: tuple[str, ...] = tuple(table.name for table in TABLES.values() if table.fast)
    """Tables of the task's own progress, which other work on the machine does not disturb."""
    fast_factor: float = 0.3
    """Factor on correlation_seconds and min_alarm_seconds for fast_tables."""
    device_tables: tuple[str, ...] = ("gpu", "rdma")
    """Tables of devices, which other work on the machine seldom disturbs."""
    device_factor: float = 0.5
    """Factor on min_alarm_seconds for device_tables."""
    max_deviation: float = 6.0
    """Clip of a deviation, in multiples of its threshold."""
    false_pages_per_1000_machine_hours: float = 0.5
    """False pages that are tolerated: thresholds are learned from the fleet for it. 0: built-in thresholds."""
    false_alarm_days: float = 7.0
    """Healthy days per false alarm in one task: sets the alarm threshold."""
    calibration: str = ""
    """A file of `peerwatch calibrate` with thresholds from healthy recordings of this fleet."""
    threshold_multipliers: dict[str, float] = field(default_factory=dict)
    """Multiplier on the alarm threshold, by table or method (default 1.0; `*` for the rest)."""
    common_cause_share: float = 0.2
    """Share of the machines above which a simultaneous deviation has a common cause and names no machine."""
    min_stall_seconds: float = 8.0
    """Least time without progress of a communicator that hangs."""
    stall_gaps: float = 4.0
    """The same as a multiple of its longest usual gap."""
    missing_rank_seconds: float = 30.0
    """Time for which a rank that never entered is a warning: it may be writing a checkpoint."""
    silent_seconds: float = 30.0
    """A machine without a row for this long, and ten of its periods, is silent; twice that is critical."""
    exit_grace_seconds: float = 3.0
    """Time after the exit of a rank in which the other ranks may exit too, without a verdict."""
    event_incident_seconds: float = 600.0
    """Time after which an incident of a single event ends."""
    judging_delay_seconds: float = 2.0
    """Live: delay of judging, so that the rows of all machines have arrived."""
    reread_seconds: float = 5.0
    """Live: time that each step reads again, for rows that arrive later."""
    straggler: StragglerConfig = field(default_factory=StragglerConfig)
    """`[detector.straggler]`: the process that its peers wait for in every iteration."""
    zoom_seconds: float = 20.0
    """Live: length of a zoom."""
    zoom_hertz: float = 20.0
    """Live: samples per second of a zoom, enough to see which device moves first."""
    standby: bool = False
    """Live: several detectors share the store, and one of them speaks."""
    history_seconds: float = 300.0
    """Live: time before the start that is read to learn the baseline."""

    def earliest_alarm_seconds(self, table: str) -> float:
        """How long a deviation lasts at least before it raises an alarm."""
        factors = (self.fast_tables, self.fast_factor), (self.device_tables, self.device_factor)
        return self.min_alarm_seconds * next((factor for tables, factor in factors if table in tables), 1.0)

    def threshold_multiplier(self, what: str) -> float:
        """Multiplier on the alarm threshold of this table or method; `*` for those not named."""
        return self.threshold_multipliers.get(what, self.threshold_multipliers.get("*", 1.0))
