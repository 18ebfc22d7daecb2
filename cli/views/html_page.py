"""A verdict as one self-contained HTML page (mobile, dark mode, print): no script, no network."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from cli import time_format
from cli.views.hang import rank_lines, stack_heads, stacks_title
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

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--paper:#fff;--card:#f5f7fa;--rule:#dde3ea;
--mine:#c2262e;--usual:#51719c;--band:#51719c38;--crit:#b3151d;--warn:#8a5a00;--ok:#1d7a3d}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa7b8;--paper:#12161c;--card:#1b212a;--rule:#323b47;
--mine:#ff7b74;--usual:#8fb4e6;--band:#8fb4e638;--crit:#ff7b74;--warn:#f0b84a;--ok:#63cf8b}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:1180px;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.35rem;line-height:1.3;margin:.2em 0 .4em}h2{font-size:1.05rem;margin:1.6em 0 .5em}
p{margin:.4em 0}.soft,dt,figcaption>span,footer{color:var(--soft);font-size:.875rem}
.level{display:inline-block;padding:0 .55em;border-radius:4px;border:1.5px solid;font-weight:700;font-size:.875rem}
.crit{color:var(--crit)}.warn{color:var(--warn)}.ok{color:var(--ok)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:8px 20px;margin:12px 0}
dd{margin:0}.card{background:var(--card);border-radius:8px;padding:12px 16px}.card b{font-size:1.05rem}
.curves{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:14px}
figure{margin:0;background:var(--card);border-radius:8px;padding:12px 12px 4px;
break-inside:avoid;display:flex;flex-direction:column}
figcaption b{display:block}svg{display:block;width:100%;height:auto;margin-top:auto;padding-top:6px}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
.grid{stroke:var(--rule);stroke-width:1}.band{fill:var(--band)}path{fill:none}
.usual{stroke:var(--usual);stroke-width:1.5;stroke-dasharray:4 3}.mine{stroke:var(--mine);stroke-width:2.2}
.mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 3}.mark.verdict{stroke-dasharray:none}
.numbers{display:flex;flex-wrap:wrap;gap:2px 14px;margin:4px 0;font-size:.875rem}
.key{display:inline-block;width:26px;height:0;border-top:3px solid var(--mine);vertical-align:middle;margin:0 4px 0 0}
.key.u{border-top:2px dashed var(--usual)}.key.b{height:12px;border:0;background:var(--band)}
.legend span{margin-right:16px;white-space:nowrap}
ol{list-style:none;padding:0;margin:0}li{display:flex;gap:12px;padding:3px 0;border-top:1px solid var(--rule)}
li time{flex:0 0 4.2em;text-align:right;color:var(--soft);font-variant-numeric:tabular-nums}
pre{overflow-x:auto}pre,code{font:.875em ui-monospace,Menlo,Consolas,monospace}
footer{margin-top:2em;border-top:1px solid var(--rule)}
@media print{:root{--ink:#000;--soft:#444;--paper:#fff;--card:#fff;--rule:#ccc;--mine:#c2262e;--usual:#51719c}
body{max-width:none;padding:0;font-size:12px}figure,.card{border:1px solid #ccc}
.curves{grid-template-columns:1fr 1fr}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(one: VerdictRecord, explained: Explanation, place: str, hardware: Mapping[str, str]) -> str:
    """The document; `hardware` names the GPU. All text from the store is escaped: names come from outside."""
    verdict = one.verdict
    name = f"{verdict.machine} {verdict.device or ''}".strip()
    parts = (_head(one, explained, hardware), _likely(explained), _curves(one, explained), _timeline(one, explained))
    body = (*parts, _closer(explained), _standstill(explained))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"/>'
        f"<title>{escape(f'{verdict.level}: {name}')}</title><style>{_STYLE}</style></head>\n<body>"
        + "\n".join(body)
        + f"<footer><p>Readings from {time_format.shown(explained.begin)} to {time_format.shown(explained.end)} UTC in "
        f"{escape(place)}. Effects are multiples of the smallest significant difference.</p></footer></body></html>\n"
    )


def _head(one: VerdictRecord, explained: Explanation, hardware: Mapping[str, str]) -> str:
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


def _standstill(explained: Explanation) -> str:
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
