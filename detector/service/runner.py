"""The live loop: reads the clock, steps the detector over the rows that came in, writes its verdicts."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from detector.alerts.dispatcher import AlertDispatcher
from detector.config import Config
from detector.engine.pipeline import Detector, State, read_rows, tick_of
from detector.engine.readings import Readings, blind_spots, hold
from detector.engine.stack_requests import StackPlanner
from detector.engine.zoom_requests import ZoomPlanner
from detector.methods.peers.groups.coverage import CODE, OVER, SOURCE, uncompared_from_events
from detector.model.verdict import RANK, Verdict
from detector.model.verdict_rows import NOTE, batch_of, verdict_of
from detector.service.clock_steps import StepWatch
from detector.service.lease import LeaseUnconfirmedError
from detector.service.snapshot import SnapshotError, load, save
from detector.thresholds.report import LearningReport, report
from detector.timeseries.rows import rows_of
from store.schema.contract import Store, StoreError
from store.schema.sample import Batch, Sample, Value
from store.schema.time import NEVER, SECOND

log = logging.getLogger(__name__)

KEEP_NS = 300 * SECOND
STALE_NS = 3600 * SECOND
"""An older snapshot is not used: machines have other work by then, and reading what came since takes long."""
PEERS_NS, AGAIN_NS = 60 * SECOND, 86400 * SECOND
"""How often it is asked which entities have no peers, and how often that is said again: a store lets go of old rows."""
LEARNED_NS = 300 * SECOND
"""How often it is written how far the thresholds are learned."""
HOLD_STEPS, HOLD_NS = 3, 3 * SECOND
"""Who was not read for so long, of both the longer, is not judged."""
SLOW_STEPS = 5
"""Where agents read seldom, a machine that has missed fewer readings than this is not silent."""
RETURN_NS = 120 * SECOND
"""For so long after readings have come back an open incident need not be found again."""
LATE_NS = round(Config().judging_delay_seconds * SECOND)
"""A reading is in the store this long after its time: it is read, written, and clocks differ by half a second."""


def run(
    store: Store,
    config: Config,
    dispatcher: AlertDispatcher,
    stop: threading.Event,
    state_file: Path | None = None,
    stale_ns: int = STALE_NS,
    alive: Callable[[str], None] = lambda status: None,
) -> None:
    """Run the detector until `stop` is set; while the store cannot be read or written it waits.

    The state is saved to the file `state_file` every five minutes and at the end, and restored from there unless it is
    older than `stale_ns`. `alive` is called at each turn and while it catches up, with the state in a few words: a loop
    that hangs does not call it. Raises StoreError where the store fails at the start, and LeaseLostError.
    """
    lag = round(config.judging_delay_seconds * SECOND)
    restored = _remembered(state_file, config, time.time_ns(), stale_ns)
    runner = Runner(store, config, time.time_ns() - lag, restored)
    runner.alive = alive
    dispatcher.begin(runner.history)
    dispatcher.acknowledged = runner.acknowledged
    due, watch = runner.at + KEEP_NS, StepWatch()
    while not stop.is_set():
        try:
            if watch.step():
                dispatcher.clock_was_set()
            if runner.at > time.time_ns():  # set back: else nothing would be judged until it has come as far again
                runner = runner.begun_again(time.time_ns() - lag)
                dispatcher.acknowledged, due = runner.acknowledged, runner.at + KEEP_NS
            verdicts = runner.catch_up(time.time_ns() - lag, stop)
            runner.request_zoom(time.time_ns(), verdicts)
            now = time.time_ns()
            dispatcher.learning = runner.learning
            silent = runner.blind_spots(now, dispatcher.blind_s)
            dispatcher.publish(verdicts, runner.machines(), now, silent, runner.noted)
            alive(runner.status())
        except StoreError as error:
            dispatcher.fail(error, runner.machines(), time.time_ns())
            alive("the store cannot be used, trying again")
        except LeaseUnconfirmedError:
            alive("nothing is said until the lease is confirmed")
        if runner.at >= due:
            due = runner.at + KEEP_NS
            _save(runner, state_file)
        stop.wait(runner.tick / SECOND)
    _save(runner, state_file)


def _remembered(state_file: Path | None, config: Config, now: int, stale_ns: int) -> tuple[State, int | None] | None:
    """The saved state and its time (Unix ns), or only what it has learned, without a time; None where there is none."""
    if state_file is None or not state_file.exists():
        return None
    try:
        state, at = load(state_file, config)
    except SnapshotError as error:
        log.warning("%s", error)
        return None
    if not 0 <= now - at < stale_ns:
        log.info("the saved state is %d s old: only the learned thresholds are used", (now - at) / SECOND)
        return State(thresholds=state.thresholds.rested()), None
    log.info("continuing from the state that was saved %d s ago", (now - at) / SECOND)
    return state, at


def _save(runner: Runner, state_file: Path | None) -> None:
    if state_file is None or runner.unwritten:  # verdicts that are not written yet would be lost
        return
    try:
        save(runner.detector.state, runner.at, state_file)
    except OSError as error:
        log.error("%s: %s; the state of the detector is not saved", state_file, error.strerror)


class Runner:
    """Steps a detector along the store from some minutes before `now` (Unix ns); writes no verdict twice."""

    def __init__(
        self, store: Store, config: Config, now: int, restored: tuple[State, int | None] | None = None
    ) -> None:
        self.store = store
        state, at = restored or (None, None)
        self.at = now - round(config.history_seconds * SECOND) if at is None else at
        self.readings = Readings(self.at)
        self.detector = Detector(config, state)
        self.zoom_planner, self.stack_planner = ZoomPlanner(config), StackPlanner(config)
        self.alive: Callable[[str], None] = lambda status: None
        self.overlap = round(config.reread_seconds * SECOND)
        self.tick = tick_of(read_rows(store, self.at, now))
        # A verdict of the future, by a wrong clock or a forger, must not silence those until then.
        said = store.read("verdict", 0, now).to_pylist()
        self.said = said[-1]["time"] if said else 0
        self.unwritten: list[Verdict] = []
        self.learning: LearningReport | None = None
        """How far the thresholds were learned when it was asked last."""
        self._notes: list[Verdict] = []
        self.noted: list[Verdict] = []
        """The notes of the last turn."""
        self._notes_after = now
        """Notes up to here belong to the history that is read again to learn the baseline."""
        self._known: tuple[int, frozenset[str]] = (-1, frozenset())
        self._without_peers: dict[str, str] | None = None
        self._asked = self._repeated = self._reported = self.at
        self.history = [verdict_of(row) for row in said if row.get("level") in RANK]
        """Earlier verdicts, in order of time."""
        if at is not None:
            return
        events = store.read("event", 0, self.at)
        last = {(row["task"], row["machine"]): row for row in said}
        still = [verdict_of(row) for row in last.values() if row.get("level") in ("warn", "crit")]
        before = rows_of("event", events) if events.num_rows else None
        self.detector.restore(before, still, now + round(config.event_incident_seconds * SECOND))

    def begun_again(self, now: int) -> Runner:
        """A runner from some minutes before `now` on, earlier than this one's time, with its open incidents."""
        new = Runner(
            self.store, self.detector.config, now, (State(thresholds=self.detector.state.thresholds.rested()), None)
        )
        new.unwritten, new.alive = self.unwritten, self.alive
        open_ones = [finding.verdict for finding in self.detector.state.incidents.open.values()]
        new.detector.state.incidents.open.clear()
        new.detector.restore(None, open_ones, now + round(self.detector.config.event_incident_seconds * SECOND))
        return new

    def catch_up(self, now: int, stop: threading.Event) -> list[Verdict]:
        """Run all whole ticks up to `now` and write the new verdicts; after a StoreError it continues from there."""
        while self.at + self.tick <= now and not stop.is_set():
            until = min(now, self.at + 60 * SECOND)
            until -= (until - self.at) % self.tick
            # Rows that came late are read again with the rest; the detector drops those that it has.
            rows, after = read_rows(self.store, self.at - self.overlap, until), NEVER
            for end in range(self.at + self.tick, until + 1, self.tick):
                tables = {name: new.span(after, end) for name, new in rows.items()}
                self.readings.feed(tables)
                self._hold(end)
                verdicts = self.detector.step(end, tables)
                self.unwritten += [verdict for verdict in verdicts if not self._is_said(verdict)]
                notes = self.detector.state.incidents.take_notes()
                self._notes += [note for note in notes if note.time > self._notes_after]
                self.at = after = end
                self.detector.learn_independence(self.store, end)
            if self.tick > SECOND:  # agents may have read seldom only while they, or a busy machine, started
                self.tick = max(SECOND, min(self.tick, tick_of(rows, self.tick)))
            if self.at + 60 * SECOND < now:  # after a pause there may be an hour to judge
                self.alive(f"{(now - self.at) // SECOND // 60} minutes of readings left to judge")
            if self.at - self._asked >= PEERS_NS:
                self._asked = self.at
                self._note_without_peers()
            if self.at - self._reported >= LEARNED_NS:
                self._report_learning()
        return self._say()

    def _is_said(self, verdict: Verdict) -> bool:
        """Whether an earlier detector has said it: the steps after a restart may be shifted by a part of a tick."""
        if verdict.time > self.said + self.tick:
            return False
        return verdict.time <= self.said or any(_same(verdict, old) for old in self.history)

    def _note_without_peers(self) -> None:
        """Write events for machines that have no peers, and for those that have peers again, once."""
        if self._without_peers is None:
            events = self.store.read("event", 0, self.at, ("message",))
            self._without_peers = uncompared_from_events(rows_of("event", events)) if events.num_rows else {}
        found, again = self.detector.uncompared(), self.at - self._repeated >= AGAIN_NS
        over = (self._without_peers.keys() - found.keys()) & self.machines()
        new = {machine: words for machine, words in found.items() if again or self._without_peers.get(machine) != words}
        events = [_event(machine, self.at, CODE, words) for machine, words in new.items()]
        events += [_event(machine, self.at, OVER, "has peers again") for machine in sorted(over)]
        if events:
            self.store.write(events)
        self._without_peers = found
        self._repeated = self.at if again else self._repeated

    def _report_learning(self) -> None:
        """Write how far the thresholds are learned, for `peerwatch status`."""
        self._reported, self.learning = self.at, report(self.detector.state.thresholds, self.detector.config)
        self.store.write([Batch(socket.gethostname(), self.at, (self.learning.sample(),))])

    def request_zoom(self, now: int, verdicts: Iterable[Verdict] = ()) -> None:
        """Ask the agents of suspects to sample faster for some seconds; `now` (Unix ns) is the clock's.

        After new verdicts of a slow task, or one without traffic, its machines are asked for rounds of stacks.
        """
        orders = self.zoom_planner.orders(now, self.detector.state.panels())
        orders += self.stack_planner.orders(now, verdicts, self._team)
        if orders:
            self.store.write([Batch(machine, now, (order.sample(),)) for machine, order in orders])

    def _team(self, task: str) -> list[str]:
        """The machines of a task."""
        tasks = self.detector.state.tasks
        return [machine for machine in self.machines() if tasks.task_of(machine) == task]

    def status(self) -> str:
        """How many machines are judged and how many incidents are open, for the service manager."""
        return f"judging {len(self.machines())} machines, {len(self.detector.state.incidents.open)} incidents open"

    def machines(self) -> frozenset[str]:
        """All machines that work for a task and are not in maintenance."""
        tasks = self.detector.state.tasks
        if self._known[0] != tasks.version:
            known = frozenset(machine for machine in tasks.seen if tasks.task_of(machine) is not None)
            self._known = tasks.version, known
        return self._known[1]

    def blind_spots(self, now: int, after_s: float) -> dict[str, int]:
        """Machines not read for `after_s` at `now` (Unix ns) that no verdict names, and when each was last read."""
        after = max(round(after_s * SECOND), SLOW_STEPS * self.tick)
        unread = self.readings.unread(self.machines(), now - after)
        return blind_spots(unread, self.machines(), self.detector.state.tasks, self.detector.config) if unread else {}

    def _hold(self, end: int) -> None:
        """Before a step: keep incidents open while their machines send no rows."""
        incidents, tasks = self.detector.state.incidents, self.detector.state.tasks
        if incidents.open:
            unread = self.readings.unread(self.machines(), end - max(HOLD_STEPS * self.tick, HOLD_NS))
            blind = blind_spots(unread, self.machines(), tasks, self.detector.config)
            hold(incidents, end, end + RETURN_NS, unread, blind, tasks)

    def acknowledged(self, verdict: Verdict) -> bool:
        """Whether the operator has acknowledged it."""
        orders = self.detector.state.tasks.orders
        return orders.acknowledged(verdict.machine, verdict.device, verdict.time) is not None

    def _say(self) -> list[Verdict]:
        notes = [_event(note.machine, note.time, NOTE, note.message, note.device) for note in self._notes]
        self.store.write([batch_of(verdict) for verdict in self.unwritten] + notes)
        said, self.noted = self.unwritten, self._notes
        self.unwritten, self._notes = [], []
        return said


def _event(machine: str, time: int, code: str, message: str, device: str | None = None) -> Batch:
    values: dict[str, Value] = {"source": SOURCE, "code": code, "severity": "info", "message": message}
    values |= {"device": device} if device else {}
    return Batch(machine, time, (Sample("event", values),))


def _same(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts are of one machine, reading, onset and level."""
    fields = ("task", "machine", "device", "metric", "since", "level")
    return all(getattr(one, name) == getattr(other, name) for name in fields)
