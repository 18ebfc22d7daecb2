"""What a job says of itself, put together: the last step, loss, gradient norm and pace, and what is odd about them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from agent.system.events import Event
from store.schema.sample import Value

SPIKE = 5.0
"""A value above so many times the median of the last ones is a spike (ByteRobust, SOSP'25: loss or gradient norm)."""
_LAST, _LEAST = 100, 20
_WORDS = {"loss": "loss", "gradient_norm": "gradient norm"}
_TAGS = {
    "loss": ("loss", "lm_loss", "lm loss", "train_loss"),
    "gradient_norm": ("grad_norm", "grad-norm", "gradient_norm", "global_grad_norm"),
    "step_seconds": ("step_time", "iteration_time", "iteration-time", "time_per_step"),
}


def name_of(tag: str) -> str:
    """Which signal a TensorBoard tag is, by its last part; empty for others."""
    last = tag.lower().rpartition("/")[2]
    return next((name for name, tags in _TAGS.items() if last in tags), "")


@dataclass(slots=True)
class Signals:
    """The state of one job."""

    flops: float = 0.0
    """Model FLOPs of a step over what its GPUs could do in a second; 0: not given."""
    values: dict[str, float] = field(default_factory=dict)
    nan_total: int = 0
    """Values of loss or gradient norm that were no number."""
    events: list[Event] = field(default_factory=list)
    _step: tuple[float, float] | None = None
    _past: dict[str, deque[float]] = field(default_factory=dict)
    _explicit: bool = False

    def feed(self, found: Mapping[str, float], at: float, fresh: bool = True) -> None:
        """Values that belong together, written or seen at that time (Unix seconds); only what is fresh is news."""
        before = len(self.events)
        for name in _WORDS:
            if name in found:
                self._judge(name, found[name])
        if not fresh:
            del self.events[before:]
        if "step_seconds" in found and 0 < found["step_seconds"] < math.inf:
            self.values["step_seconds"], self._explicit = found["step_seconds"], True
        if "step" in found:
            self._advance(found["step"], at)

    def row(self) -> dict[str, Value]:
        """The columns of table `job` that are known."""
        row: dict[str, Value] = {**self.values, "nan_total": self.nan_total}
        seconds = self.values.get("step_seconds", 0.0)
        if self.flops and seconds:
            row["mfu_ratio"] = self.flops / seconds
        return row

    def _judge(self, name: str, value: float) -> None:
        past, words = self._past.setdefault(name, deque(maxlen=_LAST)), _WORDS[name]
        if not math.isfinite(value):
            self.nan_total += 1
            self.values.pop(name, None)
            self.events.append(Event("loss_nan", "", "warn", f"the job's {words} is no number"))
            return
        usual = median(past) if len(past) >= _LEAST else math.inf
        if value > SPIKE * abs(usual):
            message = f"the job's {words} is {value:.4g}, over {SPIKE:g} × the median of the last, {usual:.4g}"
            self.events.append(Event("loss_spike", "", "warn", message))
        past.append(value)
        self.values[name] = value

    def _advance(self, step: float, at: float) -> None:
        """A step was reached; without a step time of the job's own, the time between two steps gives it."""
        self.values["step"] = step
        before = self._step
        if before is None or step < before[0]:  # a restart from a checkpoint
            self._step = step, at
        elif step > before[0] and at > before[1]:
            if not self._explicit:
                self.values["step_seconds"] = (at - before[1]) / (step - before[0])
            self._step = step, at
