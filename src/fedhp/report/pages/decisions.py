"""The decision log of a page: what was decided in a round and why, one folded part per round."""

from __future__ import annotations

from html import escape

from fedhp.record.reader import RunReader
from fedhp.report.explain import PLANNED, explain_round
from fedhp.report.formatting import count, number, seconds
from fedhp.report.pages.page import details_html, text_html
from fedhp.report.rounds import RoundView, check_round, read_round
from fedhp.report.tables import spread_evenly
from fedhp.types import LinkVerdict

ROUNDS = 12  # told in a page


def decision_log(run: RunReader) -> str:
    """Some rounds in words, evenly chosen with the first and the last, and where the rest is."""
    last = check_round(run, None)
    chosen = [place + 1 for place in spread_evenly(last, ROUNDS)]
    parts = [_round(run, index) for index in chosen]
    which = f"{len(chosen)} of {count(last, 'round')}. Any other" if len(chosen) < last else ""
    command = f"<code>{escape(f'fedhp explain {run.folder} --round N')}</code>"
    note = f"{which or 'The same'} in a terminal: {command}"
    return "\n".join([*parts, f'<p class="quiet">{note}</p>'])


def _round(run: RunReader, round_index: int) -> str:
    first, *paragraphs = explain_round(run, round_index)
    parts = [text_html(first.text)]
    parts += [
        f"<h4>{escape(paragraph.heading)}</h4>\n{text_html(paragraph.text)}"
        for paragraph in paragraphs
    ]
    return details_html(round_line(read_round(run, round_index)), "\n".join(parts))


def round_line(view: RoundView) -> str:
    """A round in one line: time, links, steps, waiting."""
    steps = [share.local_steps for share in view.shares]
    parts = [f"{view.started:.1f} to {view.clock:.1f} s", _links(view)]
    if steps:
        parts.append(f"{number(sum(steps) / len(steps))} steps on average")
    if not view.asynchronous:
        share = view.mean_waiting_time / view.round_time if view.round_time else 0.0
        parts.append(f"{seconds(view.mean_waiting_time)} waiting ({100 * share:.0f} %)")
    if view.away:
        parts.append(f"{len(view.away)} away")
    return f"Round {view.round_index}: {', '.join(parts)}"


def _links(view: RoundView) -> str:
    if any(verdict in view.verdicts for verdict in PLANNED):
        cut = view.count(LinkVerdict.CUT)
        return f"{view.links_known - cut} of {count(view.links_known, 'link')} kept"
    return count(view.links_used, "transfer" if view.directed else "link")
