"""One incident, one verdict: what is new, what is a consequence of an open incident, and what is over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from detector.model.kinds import is_own_error, is_own_event, only_slows
from detector.model.text import subject
from detector.model.verdict import RANK, STALLED, Finding, Verdict
from detector.topology.maintenance import OperatorState
from store.schema.time import SECOND

_AS_STRONG = 0.7  # of the open incident's score: weaker ones elsewhere are its consequences
_FIRST_NS = 20 * SECOND  # what began so much earlier than the open incident is no consequence of it
_FOLLOWS_NS = 120 * SECOND  # what begins later than this after a hard fact is no consequence of it
_ENDS = {
    "peer": "is like its peers again",
    "progress": "keeps pace with its peers again",
    "event.silent": "is no longer silent while its peers report",
    STALLED: "makes progress again",
}
"""What the end of an incident says, by metric or method."""
_COMES_NS = 600 * SECOND  # so long what has come back once has to be away to be over
_NOTE_NS = 3600 * SECOND
_SETTLED_NS = 900 * SECOND  # longer than any incident needs to clear: `Config.forget_s` is 600 s
_CLOSED_NS = 60 * SECOND  # so long a fault has to last after the operator closed it, to be reported again
_ENDED_NS, _KNOWN_NS = 120 * SECOND, 1800 * SECOND
_TAIL_NS = 30 * SECOND  # about so long an incident of a straggler stays open once its fault has ended
_SECOND_EVIDENCE = 1.4  # asked of a second machine while a first has an incident


@dataclass(slots=True)
class Incidents:
    """Open incidents by (task, machine), with the finding that was last reported."""

    open: dict[tuple[str, str], Finding] = field(default_factory=dict)
    held_open: dict[tuple[str, str], int] = field(default_factory=dict)
    """Until when (Unix ns) an incident stays open without a finding: it was restored, or its machine is not read."""
    independent: frozenset[tuple[str, str]] = frozenset()
    """Pairs of machines that are known to have nothing to do with each other now."""
    notes: list[Verdict] = field(default_factory=list)
    """Differences that do no harm, since the last `take_notes`."""
    noted: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Machine, device and metric -> when (Unix ns) it was last noted."""
    closed: dict[tuple[str, str], int] = field(default_factory=dict)
    """When (Unix ns) the operator closed an incident: for a minute nothing older than that opens it again."""
    ended: dict[tuple[str, str], tuple[Finding, int]] = field(default_factory=dict)
    """Incidents that cleared in the last half hour, and when (Unix ns): what they caused may last longer."""
    recurring: dict[tuple[str, str], int] = field(default_factory=dict)
    """Open incidents by a reading that had cleared, and when (Unix ns) they were found last: they come and go."""
    quiet_ns: int = 0
    """For how long no verdict was reached."""
    _at: int = 0

    def restore(self, verdicts: Iterable[Verdict], until: int) -> None:
        """Resume the open verdicts of an earlier detector; they have until `until` (Unix ns) to be found again."""
        for verdict in verdicts:
            key = verdict.task, verdict.machine
            self.open[key], self.held_open[key] = Finding(verdict, verdict.kind != "peer", 1.0), until

    def update(self, now: int, findings: Iterable[Finding], orders: OperatorState | None = None) -> list[Verdict]:
        """The new verdicts: opened, worse, or cleared; notes go to `take_notes`."""
        found = list(findings)
        self._note([finding.verdict for finding in found if finding.verdict.level == "note"])
        findings = [finding for finding in found if finding.verdict.level != "note"]
        closed = self._close(now, orders or OperatorState())
        named = {one.verdict.task for one in findings if one.hard and one.verdict.machine != one.verdict.task}
        current: dict[tuple[str, str], Finding] = {}
        for finding in sorted(findings, key=_order):
            if finding.verdict.machine != finding.verdict.task or finding.verdict.task not in named:
                current.setdefault((finding.verdict.task, finding.verdict.machine), finding)
        self.closed |= {(over.task, over.machine): now for over in closed}
        self.closed = {key: since for key, since in self.closed.items() if now - since < _CLOSED_NS}
        for key in self.closed.keys() & current.keys():
            if not _is_new(current[key], self.closed[key]):  # what lasts longer is reported again
                del current[key]
        self.ended = {key: one for key, one in self.ended.items() if now - one[1] < _KNOWN_NS}
        opened = [verdict for key, finding in current.items() if (verdict := self._report(key, finding, now))]
        self.held_open = {key: until for key, until in self.held_open.items() if now < until and key not in current}
        self.recurring = {key: now if key in current else at for key, at in self.recurring.items() if key in self.open}
        away = [key for key in self.open if key not in current and key not in self.held_open]
        healed = [key for key in away if now - self.recurring.get(key, now - _COMES_NS) >= _COMES_NS]
        self.ended |= {key: (self.open[key], now) for key in healed}
        verdicts = closed + opened + [_cleared(self.open.pop(key).verdict, now) for key in healed]
        self.quiet_ns = 0 if verdicts else self.quiet_ns + (now - self._at if self._at else 0)
        self._at = now
        return verdicts

    def _note(self, verdicts: Iterable[Verdict]) -> None:
        """Add the notes that are new: one a machine and reading, and an hour."""
        for verdict in verdicts:
            key = verdict.machine, verdict.device or "", verdict.metric
            if verdict.time - self.noted.get(key, -_NOTE_NS) >= _NOTE_NS:
                self.noted[key] = verdict.time
                self.notes.append(verdict)

    def take_notes(self) -> list[Verdict]:
        """The notes since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def settled(self) -> bool:
        """Whether nothing is left that would clear by itself: what is open for long stays until it is repaired."""
        return not self.open or self.quiet_ns > _SETTLED_NS

    def _close(self, now: int, orders: OperatorState) -> list[Verdict]:
        """End the incidents that the operator has closed."""
        over = [(key, why) for key, found in self.open.items() if (why := orders.ends(found.verdict))]
        for key, _ in over:
            self.held_open.pop(key, None)
        return [_cleared(self.open.pop(key).verdict, now, why) for key, why in over]

    def _report(self, key: tuple[str, str], finding: Finding, now: int) -> Verdict | None:
        before = self.open.get(key)
        if before is None:
            if _has_faded(finding) or self._is_consequence(key, finding) or self._is_remnant(key, finding, now):
                return None
            if self._recurs(key, finding):
                self.recurring[key] = now
        elif not _is_worse(before, finding):
            return None
        self.open[key] = finding
        return finding.verdict

    def _recurs(self, key: tuple[str, str], finding: Finding) -> bool:
        """Whether the same reading of the same device deviated already, and was like its peers' for a while."""
        if finding.hard or key not in self.ended:
            return False
        before = self.ended[key][0].verdict
        return (before.device, before.metric) == (finding.verdict.device, finding.verdict.metric)

    def _is_consequence(self, key: tuple[str, str], finding: Finding) -> bool:
        # A slow device elsewhere neither stops a task nor hangs a mount.
        no_slowness = finding.hard and (finding.verdict.kind == "progress" or is_own_event(finding.verdict.metric))
        others = [
            other
            for known, other in self.open.items()
            if known[0] == key[0] and known != key and known[0] != known[1] and not _came_later(finding, other)
            if not (no_slowness and only_slows(other.verdict.metric))
            if finding.hard or other.hard or (min(key[1], known[1]), max(key[1], known[1])) not in self.independent
        ]
        fact = finding.hard and finding.verdict.kind != "progress" and finding.evidence > 1
        if not others or fact or finding.late or _counts_own_errors(finding):
            return False
        if finding.hard or any(other.hard for other in others):
            return any(other.hard for other in others)
        strongest = max(other.verdict.score for other in others)
        first = finding.verdict.since < min(other.verdict.since for other in others) - _FIRST_NS
        weaker = finding.verdict.score < _AS_STRONG * strongest
        return finding.evidence < _SECOND_EVIDENCE or (weaker and not finding.own and not first)

    def _is_remnant(self, key: tuple[str, str], finding: Finding, now: int) -> bool:
        """Whether this began while an incident of the task was open that has ended: a deviation for a short time.

        A task that stands since then goes on to stand when the culprit has left it, until it is started again. A rank
        that others wait for from the end of an incident on is no remnant: it takes its time to end after the fault.
        """
        since, stalled = finding.verdict.since, key[0] == key[1]
        tail = _TAIL_NS if finding.verdict.kind == "progress" and not stalled else 0
        return (stalled or not finding.hard) and any(
            task == key[0]
            and before.verdict.since - _FIRST_NS <= since <= ended - tail
            and (stalled or now - ended < _ENDED_NS)
            for (task, _), (before, ended) in self.ended.items()
        )


def _came_later(finding: Finding, hard: Finding) -> bool:
    """Whether a pattern began too long after a hard fact to be its consequence."""
    return hard.hard and finding.verdict.since > hard.verdict.since + _FOLLOWS_NS


def _has_faded(finding: Finding) -> bool:
    """Whether a deviation that was found, and follows from another fault so far, is gone while its evidence is not."""
    return finding.verdict.kind == "peer" and not finding.hard and finding.verdict.score < 1


def _is_new(finding: Finding, closed: int) -> bool:
    """Whether a fact came after the operator closed the incident."""
    return finding.hard and finding.verdict.since > closed


def _counts_own_errors(finding: Finding) -> bool:
    """Whether a device counts too many errors of its own, which no other machine makes."""
    return finding.verdict.kind == "evidence" and is_own_error(finding.verdict.metric)


def _order(finding: Finding) -> tuple[bool, bool, float, bool, int, float]:
    verdict = finding.verdict
    mild = verdict.kind == "evidence" and verdict.level == "warn"  # must not hide what is worse
    evidence = -finding.evidence if finding.hard else 0.0
    own = finding.own or _counts_own_errors(finding)  # of a machine with both it is why it loses packets
    return (mild, not finding.hard, evidence, not own, verdict.since, -verdict.score)


def _is_worse(before: Finding, after: Finding) -> bool:
    harder = after.hard and not before.hard
    return harder or RANK[after.verdict.level] > RANK[before.verdict.level]


def _cleared(verdict: Verdict, now: int, how: str = "") -> Verdict:
    who = subject(verdict.machine, verdict.device)
    how = how or _ENDS.get(verdict.metric) or _ENDS.get(verdict.kind, "no longer shows this")
    return replace(verdict, time=now, level="ok", score=0.0, message=f"{who} {how} ({verdict.metric})", evidence=())
