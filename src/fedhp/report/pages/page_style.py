"""How a page looks: one style sheet, light and dark by the reader's choice, and on paper."""

from __future__ import annotations

STYLE = """\
:root {
  color-scheme: light dark;
  --ink: #1d2126; --soft: #59616b; --line: #d9dde2; --paper: #ffffff; --side: #f6f7f9;
  --link: #005a8f; --good: #e4f2ea; --good-ink: #0b5a3c; --bad: #fbe9e1; --bad-ink: #8f3a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e7ea; --soft: #a2abb5; --line: #363c44; --paper: #15181c; --side: #1b1f24;
    --link: #7cc4f0; --good: #15382a; --good-ink: #8fdcb8; --bad: #43240f; --bad-ink: #f5b28a;
  }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans",
    "Liberation Sans", Arial, sans-serif;
  display: grid; grid-template-columns: 15.5rem minmax(0, 1fr);
}
a { color: var(--link); text-underline-offset: 0.15em; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }

nav {
  position: sticky; top: 0; height: 100vh; overflow-y: auto; padding: 2rem 1.25rem;
  background: var(--side); border-right: 1px solid var(--line); font-size: 0.875rem;
}
nav a { display: block; padding: 0.28rem 0; color: var(--soft); text-decoration: none; }
nav a:hover { color: var(--link); text-decoration: underline; }
nav .home { color: var(--ink); font-weight: 650; line-height: 1.35; margin-bottom: 0.6rem; }
nav ul { list-style: none; margin: 0; padding: 0; line-height: 1.35; }

main { width: 100%; max-width: 70rem; padding: 2.2rem 2.5rem 3rem; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -0.015em; margin: 0 0 0.8rem; }
h2 {
  font-size: 1.35rem; line-height: 1.25; letter-spacing: -0.01em; margin: 0 0 0.9rem;
  padding-top: 1.6rem; border-top: 1px solid var(--line);
}
h3 { font-size: 1.05rem; margin: 1.8rem 0 0.5rem; }
h4 { font-size: 0.9rem; margin: 0.8rem 0 0.1rem; }
section { margin-top: 2.2rem; }
p, dl, ul, figcaption, caption { max-width: 46rem; }
p { margin: 0.55rem 0; }
.lead { font-size: 1.08rem; }
.quiet, footer { color: var(--soft); }
code {
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 0.88em; overflow-wrap: anywhere;
}

figure { margin: 1.2rem 0 1.6rem; }
.card {
  background: #ffffff; border: 1px solid var(--line); border-radius: 6px; padding: 0.9rem;
  overflow-x: auto; width: fit-content; max-width: 100%;
}
.card svg { display: block; max-width: 100%; height: auto; }
.card svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { color: var(--soft); font-size: 0.9rem; margin-top: 0.5rem; }
.row { display: flex; flex-wrap: wrap; gap: 0 1.5rem; align-items: flex-start; }
.row > figure { flex: 0 1 auto; min-width: 0; max-width: 31.5rem; }

.wide { overflow-x: auto; margin: 1rem 0 1.4rem; }
table { border-collapse: collapse; font-size: 0.875rem; line-height: 1.4; }
caption {
  caption-side: bottom; text-align: left; color: var(--soft); padding-top: 0.5rem;
  font-size: 0.875rem;
}
thead { border-top: 1.5px solid var(--ink); border-bottom: 1px solid var(--ink); }
tbody { border-bottom: 1.5px solid var(--ink); }
th, td { padding: 0.32rem 0.75rem; text-align: left; vertical-align: top; }
th:first-child, td:first-child { padding-left: 0.2rem; }
thead th { vertical-align: bottom; font-weight: 600; }
tbody th { font-weight: 400; }
tbody tr + tr { border-top: 1px solid var(--line); }
th.num, td.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.good, td.good { font-weight: 650; background: var(--good); color: var(--good-ink); }
th.bad, td.bad { background: var(--bad); color: var(--bad-ink); }
th.quiet, td.quiet { color: var(--soft); }

details { border: 1px solid var(--line); border-radius: 6px; margin: 0.5rem 0; }
summary { cursor: pointer; padding: 0.5rem 0.8rem; font-size: 0.95rem; }
summary:hover { color: var(--link); }
details[open] > summary { border-bottom: 1px solid var(--line); }
.inside { padding: 0.4rem 0.9rem 0.8rem; }
.inside details > summary { font-size: 0.9rem; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line);
  font-size: 0.85rem; }

@media (max-width: 62rem) {
  html { scroll-padding-top: 3.6rem; }
  body { display: block; }
  nav {
    height: auto; padding: 0.5rem 1.1rem; border-right: 0; border-bottom: 1px solid var(--line);
    z-index: 2; overflow-x: auto;
  }
  nav .home { display: none; }
  nav ul { display: flex; gap: 1.3rem; white-space: nowrap; }
  main { padding: 1.4rem 1.1rem 2.5rem; }
  h1 { font-size: 1.55rem; }
  .card { padding: 0.5rem; }
}
@media (max-width: 40rem) {
  .card svg.broad { width: 42rem; max-width: none; }
  caption { max-width: 88vw; }
}
@media print {
  :root {
    color-scheme: light;
    --ink: #000000; --soft: #444444; --line: #bbbbbb; --paper: #ffffff; --link: #000000;
    --good: #eeeeee; --good-ink: #000000; --bad: #ffffff; --bad-ink: #000000;
  }
  body { display: block; font-size: 10pt; }
  nav { display: none; }
  main { max-width: none; padding: 0; }
  h2, h3, h4 { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  .card { border: 0; padding: 0; }
  .wide { overflow: visible; }
  details { border: 0; }
  a { text-decoration: none; }
}
"""
