"""The page itself: one document with its style, a table of contents, sections, and figures inside it."""

import base64
import dataclasses
import pathlib
from collections.abc import Sequence
from html import escape
from string import Template

# The policy makes a browser refuse any script and any request: what is seen is in the file.
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
$style
</style>
</head>
<body>
<header>
<h1>$title</h1>
$lead
</header>
<nav aria-label="Contents">
<h2>Contents</h2>
$contents
</nav>
<main>
$body
</main>
</body>
</html>
""")

_STYLE = """
:root { --ink: #1b1b1b; --soft: #5c5c5c; --line: #d5d5d5; --paper: #ffffff; --wash: #f5f5f3; --link: #00558a;
  --holds: #0a6b3d; --fails: #a8321a; --undecided: #6b5300; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e4e1; --soft: #a5a5a0; --line: #44443f; --paper: #191918;
  --wash: #242422; --link: #83bfe8; --holds: #6fce9c; --fails: #f0957f; --undecided: #dcc070; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 80rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 Charter, "Bitstream Charter", Georgia, "Times New Roman", serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .6rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.08rem; margin: 1.8rem 0 .4rem; }
p, li, figcaption { max-width: 46rem; }
a { color: var(--link); }
nav h2 { font-size: 1rem; margin: 1.2rem 0 .2rem; border: 0; }
nav ul { margin: 0; padding-left: 1.2rem; }
nav > ul { columns: 17rem; }
nav > ul > li { break-inside: avoid; }
code, pre { font: .86em/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { background: var(--wash); padding: .7rem .9rem; overflow-x: auto; }
dd pre { margin: 0; }
pre.wraps { white-space: pre-wrap; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; font: .8rem/1.4 system-ui, "DejaVu Sans", "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; text-align: left; color: var(--soft); padding-top: .4rem; }
th { text-align: left; font-weight: 600; vertical-align: bottom; border-bottom: 1.5px solid var(--soft); }
td { vertical-align: top; border-bottom: 1px solid var(--line); white-space: nowrap; }
th, td { padding: .3rem .55rem .3rem 0; }
td.n, th.n { text-align: right; }
ul.why { font-size: .9rem; color: var(--soft); padding-left: 1.2rem; }
.verdict { font-weight: 600; }
.holds { color: var(--holds); } .fails { color: var(--fails); } .undecided { color: var(--undecided); }
.soft { color: var(--soft); }
figure { margin: 1rem 0 1.6rem; }
figure img { max-width: 100%; height: auto; background: #ffffff; padding: .4rem; }
figcaption { color: var(--soft); font-size: .92rem; margin-top: .3rem; }
.math { overflow-x: auto; overflow-y: hidden; padding: .3rem 0; margin: .3rem 0; }
math { font-size: 1.12em;
  font-family: "STIX Two Math", "Latin Modern Math", "Cambria Math", "DejaVu Math TeX Gyre", math; }
.math math, .formulas math { width: max-content; margin: 0; text-align: left; }
.math mtd { padding: .9ex .35ex; text-align: left; }
.formulas li { margin: .5rem 0; max-width: none; overflow-x: auto; }
.formulas math { padding: .4rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; }
summary { cursor: pointer; color: var(--link); }
@media (max-width: 40rem) { body { padding: 1rem .9rem 3rem; } dl { display: block; } dd { margin: 0 0 .5rem; } }
@media print { body { max-width: none; font-size: 10pt; padding: 0; } nav { display: none; }
  figure, tr, .math { break-inside: avoid; } h2, h3 { break-after: avoid; } .scroll, .math { overflow: visible; }
  table { font-size: 7.5pt; } }
""".strip()


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        anchor: its name in links, unique on the page.
        title: plain text.
        body: HTML.
        parts: sections within it, one level deep.
    """

    anchor: str
    title: str
    body: str
    parts: "tuple[Section, ...]" = ()


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """A whole document.

    Args:
        title: plain text.
        lead: HTML above the contents.
        sections: in order.
    """
    return _PAGE.substitute(
        title=escape(title),
        style=_STYLE,
        lead=lead,
        contents=_contents(sections),
        body="\n".join(_section(section, 2) for section in sections),
    )


def figure(svg: pathlib.Path, alt: str, caption: str) -> str:
    """A figure inside the page.

    Args:
        svg: the drawing. It is embedded as an image of its own, so that its names do not mix with the page's.
        alt: what it shows, in words.
        caption: HTML below it.
    """
    data = base64.b64encode(svg.read_bytes()).decode("ascii")
    image = f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure>\n{image}\n<figcaption>{caption}</figcaption>\n</figure>"


def _contents(sections: Sequence[Section]) -> str:
    lines = (
        f'<li><a href="#{section.anchor}">{escape(section.title)}</a>'
        f"{_contents(section.parts) if section.parts else ''}</li>"
        for section in sections
    )
    return "<ul>\n" + "\n".join(lines) + "\n</ul>"


def _section(section: Section, level: int) -> str:
    heading = f"<h{level}>{escape(section.title)}</h{level}>"
    parts = [_section(part, level + 1) for part in section.parts]
    return "\n".join([f'<section id="{section.anchor}">', heading, section.body, *parts, "</section>"])
