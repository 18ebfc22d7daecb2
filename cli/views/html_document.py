"""The frame of every HTML report: self-contained, for phones, dark mode and paper; no script, no network."""

from __future__ import annotations

from html import escape

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
.cell{fill:var(--mine);stroke:var(--rule)}.bar{fill:var(--usual)}.bar.hot{fill:var(--mine)}svg .value{fill:var(--ink)}
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


def document(title: str, body: str, footer: str) -> str:
    """The page; `body` and `footer` are HTML with names from outside escaped, the title is text."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>"
        f"{body}<footer><p>{footer}</p></footer></body></html>\n"
    )
