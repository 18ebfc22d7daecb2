"""A verdict as one self-contained HTML page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from cli import time_format
from cli.views.hang import rank_lines, stack_heads, stacks_title
from cli.views.html_document import document
from cli.views.svg import curve
from cli.views.verdict_text import (
    after,
    compared,
    figure,
    hardware_words,
    metric_name,
    runner_up_lines,
    sign_words,
    timeline,
)
from cli.views.zoom import zoom_lines, zoom_title

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.queries.verdict_history import VerdictRecord
    from detector.explain.difference import MetricShift
    from detector.explain.explanation import Explanation


def page(
    one: VerdictRecord,
    explained: Explanation,
    place: str,
    hardware: Mapping[str, str],
    uncounted: tuple[str, ...] = (),
) -> str:
    """The document; `hardware` names the GPU, `uncounted` are lines about probes that were off.

    All text from the store is escaped: names come from outside.
    """
    verdict = one.verdict
    name = f"{verdict.machine} {verdict.device or ''}".strip()
    head = _head(one, explained, hardware, uncounted)
    stacks = _stacks(explained)  # of a hang they tell more than the curves
    body = (head, _likely(explained), stacks, _curves(one, explained), _timeline(one, explained), _closer(explained))
    footer = (
        f"Readings from {time_format.shown(explained.begin)} to {time_format.shown(explained.end)} UTC in "
        f"{escape(place)}. Effects are multiples of the smallest significant difference."
    )
    return document(f"{verdict.level}: {name}", "\n".join(body), footer)


def _head(one: VerdictRecord, explained: Explanation, hardware: Mapping[str, str], uncounted: tuple[str, ...]) -> str:
    verdict = one.verdict
    ended = f"{one.outcome} at {time_format.shown(one.closed)} UTC" if one.closed else "open"
    facts = {
        "Machine": f"{verdict.machine}, {verdict.device or 'the machine as a whole'}",
        "Onset": f"{time_format.shown(verdict.since)} UTC",
        "Detected after": time_format.ago((one.verdicts[0].time - verdict.since) / 1e9),
        "State": ended,
        "Compared with": compared(explained),
        "Detected by": f"{metric_name(verdict.metric)} (method {verdict.kind})",
    }
    facts |= {"Job": verdict.job.words} if verdict.job else {}
    facts |= {"Hardware": hardware_words(hardware)} if hardware else {}
    facts |= {"Probes": "; ".join(uncounted)} if uncounted else {}
    terms = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    level = f'<span class="level {escape(verdict.level)}">{escape(verdict.level)}</span>'
    return f"<header>{level}<h1>{escape(verdict.message)}</h1><dl>{terms}</dl></header>"


def _likely(explained: Explanation) -> str:
    found = explained.likely
    because = f"<p>Indicators: {escape(', '.join(map(sign_words, found.signs)))}.</p>" if found.signs else ""
    near = "".join(f'<p class="soft">{escape(line[0].upper() + line[1:])}.</p>' for line in runner_up_lines(explained))
    return (
        f'<section><h2>Likely kind of fault</h2><div class="card"><b>{escape(found.kind.words)}</b>{because}'
        f"<p>Next: {escape(found.kind.advice)}</p></div>{near}</section>"
    )


def _curves(one: VerdictRecord, explained: Explanation) -> str:
    if not explained.moved:
        return "<section><h2>What changed</h2><p>No reading changed differently from the peers'.</p></section>"
    legend = (
        '<p class="legend soft"><span><i class="key"></i>this machine</span>'
        '<span><i class="key u"></i>median of its peers</span>'
        '<span><i class="key b"></i>10th to 90th percentile of its peers</span>'
        "<span>time relative to the onset</span></p>"
    )
    figures = "".join(_figure(moved, one, explained) for moved in explained.moved)
    return f'<section><h2>What changed, in order of onset</h2>{legend}<div class="curves">{figures}</div></section>'


def _figure(moved: MetricShift, one: VerdictRecord, explained: Explanation) -> str:
    from store.schema.catalogue import METRICS

    metric, since = METRICS.get(moved.key), explained.verdict.since
    device = moved.device or "machine"
    if moved.alike[0] > 1:
        device += f", like {moved.alike[0]} of {moved.alike[1]} devices"
    decisive = " · metric of the verdict" if moved is explained.main_shift else ""
    rate = ", per second" if metric and metric.kind == "counter" else ""
    title = metric_name(moved.key)
    numbers = {
        "before": figure(moved.before, moved.key),
        "since": figure(moved.value, moved.key),
        "peers": figure(moved.usual, moved.key),
        "effect": f"{moved.effect:+.1f}",
        "onset": after(moved.onset, since),
    }
    cells = "".join(f'<span><span class="soft">{escape(k)}</span> {escape(v)}</span>' for k, v in numbers.items())
    chart = curve(moved, since, one.verdicts[0].time, (explained.begin, explained.end))
    return (
        f"<figure><figcaption><b>{escape(title)}</b><span>{escape(device)}{decisive} · {escape(moved.key)}{rate}</span>"
        f'<div class="numbers">{cells}</div></figcaption>{chart}</figure>'
    )


def _closer(explained: Explanation) -> str:
    """The zooms; empty without any."""
    parts = []
    for one in explained.closeups:
        title = zoom_title(one, explained.verdict.since)
        lines = escape("\n".join(zoom_lines(one)))
        parts.append(f"<h2>{escape(title[0].upper() + title[1:])}</h2><pre>{lines}</pre>")
    return f"<section>{''.join(parts)}</section>" * bool(parts)


def _stacks(explained: Explanation) -> str:
    """State and stacks of the ranks of a task that hangs; empty for other verdicts."""
    lines, title = "\n".join(rank_lines(explained.hang)), stacks_title(explained.hang)
    stood = f"<pre>{escape(lines)}</pre>" if lines else ""
    where = "".join(
        f'<p class="{"crit" if group.odd else ""}">{escape(head)}</p><pre>{escape(group.stack)}</pre>'
        for head, group in stack_heads(explained.hang)
    )
    where = where and f"<p>{escape(title[0].upper() + title[1:])}.</p>{where}"
    head = "<h2>State and stacks of the ranks</h2>"
    return f"<section>{head}{stood}{where}</section>" * bool(stood or where)


def _timeline(one: VerdictRecord, explained: Explanation) -> str:
    since = explained.verdict.since
    rows = "".join(
        f"<li><time>{escape(after(time, since))}</time><span>{escape(what)}</span></li>"
        for time, what in timeline(one, explained)
    )
    return f"<section><h2>Timeline</h2><ol>{rows}</ol></section>"
