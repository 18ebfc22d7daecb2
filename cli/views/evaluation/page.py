"""Figures of `peerwatch evaluate` as one self-contained HTML page: charts as SVG, no script, no network."""

from __future__ import annotations

from html import escape

from cli.views.evaluation.charts import by_kind, found_over_time, shares
from cli.views.evaluation.tables import Figures, summary_rows

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--paper:#fff;--rule:#dde3ea;
--c0:#c2262e;--c1:#2f6db5;--c2:#2f8f4e;--c3:#a8720c;--c4:#7a4bb0;--c5:#128a92;--c6:#b0427c;--c7:#6b7280}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa7b8;--paper:#12161c;--rule:#323b47;
--c0:#ff7b74;--c1:#79b0f2;--c2:#63cf8b;--c3:#f0b84a;--c4:#b894ec;--c5:#58ccd3;--c6:#ef8fbf;--c7:#a3abb8}}
body{margin:0 auto;padding:16px;max-width:1080px;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.35rem}h2{font-size:1.05rem;margin:1.8em 0 .4em}.soft,footer{color:var(--soft);font-size:.875rem}
svg{display:block;width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
svg .soft{fill:var(--soft)}.rule{stroke:var(--rule);stroke-width:1}
table{border-collapse:collapse;font-size:.875rem}td,th{padding:3px 12px 3px 0;text-align:left;
border-top:1px solid var(--rule);font-variant-numeric:tabular-nums}.wide{overflow-x:auto}
@media print{body{max-width:none;font-size:11px}svg{break-inside:avoid}}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(found: Figures, counted: str) -> str:
    """The document; names of methods and kinds come from outside and are escaped."""
    recordings = max((figures["recordings"] for figures in found.values()), default=0)
    head = "".join(f"<th>{escape(name)}</th>" for name in found)
    rows = "".join(
        f"<tr><td>{escape(label)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for label, cells in summary_rows(found)
    )
    sections = {
        "Precision and recall": shares(found),
        "Faults found, by time since the onset": found_over_time(found),
        "Faults found, by kind": by_kind(found),
        "All figures": f'<div class="wide"><table><tr><th></th>{head}</tr>{rows}</table></div>',
    }
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"/>'
        f"<title>Evaluation of {recordings} recordings</title><style>{_STYLE}</style></head>\n<body>"
        f"<h1>Evaluation of {recordings} recordings</h1>"
        + "".join(f"<section><h2>{title}</h2>{body}</section>\n" for title, body in sections.items())
        + f"<footer><p>Every false alarm is one error of precision; {escape(counted)}.</p></footer></body></html>\n"
    )
