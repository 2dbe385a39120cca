"""The page of a proof: one HTML file that loads nothing."""

import base64
import html
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_proof.pictures import pictures
from benchmarks.gpu_proof.sections import Section, Table, device_of, sections
from loadtests.drawing import palette

PAGE = "proof.html"
_STYLE = """
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.55 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.7rem;margin:0 0 .25rem} h2{font-size:1.15rem;margin:0}
section{background:var(--panel);border:1px solid var(--line);border-radius:.6rem;
  padding:1rem 1.25rem;margin:1rem 0}
.when,.facts{color:var(--soft);font-size:.85rem;margin:.1rem 0 .6rem}
.warn{border:2px solid var(--missed);color:var(--missed);border-radius:.6rem;
  padding:.6rem 1rem;font-weight:600}
p{margin:.4rem 0} img{max-width:100%;height:auto;border-radius:.4rem}
.wide{overflow-x:auto} table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.25rem .9rem .25rem 0;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left} th{color:var(--soft);font-weight:600}
code{font-size:.9em}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CODE = re.compile(r"`([^`]+)`")


def write_page(document: Mapping[str, Any], folder: Path) -> Path:
    """Write the page of a proof's document, and return its path."""
    drawn = {name: _png(figure) for name, figure in pictures(document).items()}
    identity = document["identity"]
    rows = "".join(_section(one, drawn.get(one.stage)) for one in sections(document))
    warning = (
        '<p class="warn">A rehearsal on a CPU: none of these figures is a GPU\'s.</p>'
        if identity["device"] == "cpu"
        else ""
    )
    missing = document["not measured"]
    rest = f'<p class="facts">Not measured yet: {html.escape(", ".join(missing))}.</p>' if missing else ""
    facts = "; ".join(f"{name}: {value}" for name, value in identity.items() if name != "device")
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>Tideserve on {html.escape(device_of(document))}</title>"
        f"<style>:root{{{palette.css(palette.LIGHT)}}}"
        f"@media(prefers-color-scheme:dark){{:root{{{palette.css(palette.DARK)}}}}}{_STYLE}</style>"
        f"<main><h1>Tideserve on {html.escape(device_of(document))}</h1>"
        f'<p class="facts">{html.escape(facts)}</p>{warning}{rows}{rest}</main></html>'
    )
    path = folder / PAGE
    path.write_text(text, encoding="utf-8")
    return path


def _section(one: Section, picture: str | None) -> str:
    paragraphs = "".join(f"<p>{_inline(line)}</p>" for line in one.text)
    image = f'<img alt="{html.escape(one.title)}" src="data:image/png;base64,{picture}">' if picture else ""
    tables = "".join(_table(table) for table in one.tables)
    return (
        f'<section id="{one.stage}"><h2>{html.escape(one.title)}</h2>'
        f'<p class="when">{html.escape(one.when)}</p>{paragraphs}{image}{tables}</section>'
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _inline(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", html.escape(text))


def _png(figure: Any) -> str:
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": "Tideserve"})
    return base64.b64encode(out.getvalue()).decode()
