"""A page is one valid document, escapes what is text, and reaches for nothing outside."""

from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedhp.report.figures.style import new_figure, paper_style
from fedhp.report.pages.page import (
    Section,
    details_html,
    figure_html,
    render_page,
    slug,
    table_html,
    text_html,
)
from unit.report.markup import check_page, read_markup

EVIL = "<script>alert('x')</script> & \"more\" <img src=http://example.org/x.png>"


@paper_style()
def drawing(*, heat: bool = False) -> Figure:
    """Curves with a clip path, a hatch, markers, text; or a map that becomes a picture."""
    figure = new_figure(3.5, 2.0)
    axes = figure.subplots()
    if heat:
        axes.pcolormesh(np.arange(12.0).reshape(3, 4), rasterized=True)
    else:
        axes.plot([0, 1, 2], [0.123456789, 0.5, 0.25], "-o", label="one <&> two")
        axes.bar([0, 1], [0.1, 0.2], hatch="////", facecolor="white", edgecolor="grey")
        axes.legend()
    axes.set_title('--> <b>bold</b> & "quoted"')
    return figure


def page(*bodies: str, title: str = "A title", lead: str = "A lead.") -> str:
    sections = [Section(f"Part {i}", f"part{i}", body) for i, body in enumerate(bodies)]
    return render_page(title=title, lead=lead, sections=sections)


def test_a_page_has_all_parts_and_a_navigation_to_each() -> None:
    markup = check_page(page("<p>one</p>", "<p>two</p>", lead="First.\n\nSecond."))
    assert [e.attributes["id"] for e in markup.all("section")] == ["part0", "part1"]
    links = [e for e in markup.all("a") if "nav" in e.path]
    assert [e.attributes["href"] for e in links] == ["#top", "#part0", "#part1"]
    assert [e.text for e in markup.all("h2")] == ["Part 0", "Part 1"]
    assert [e.text for e in markup.all("p")] == ["First.", "Second.", "one", "two"]
    assert markup.all("title")[0].text == markup.all("h1")[0].text == "A title"
    assert markup.all("html")[0].attributes["lang"] == "en"


def test_texts_are_escaped_everywhere() -> None:
    body = "\n".join(
        [
            text_html(EVIL),
            details_html(EVIL, text_html(EVIL)),
            table_html([EVIL, "b"], [[EVIL, EVIL]], caption=EVIL),
            figure_html(drawing(), name=EVIL, caption=EVIL, alt=EVIL),
        ]
    )
    text = render_page(title=EVIL, lead=EVIL, sections=[Section(EVIL, "part", body)])
    markup = check_page(text)
    assert not markup.all("script")
    assert not markup.all("img")
    for tag in ("title", "h1", "h2", "summary", "caption", "figcaption"):
        assert markup.all(tag)[0].text == EVIL
    assert markup.all("svg")[0].attributes["aria-label"] == EVIL
    assert [cell.text for cell in markup.all("td")] == [EVIL]


def test_the_policy_comes_before_anything_it_should_rule() -> None:
    text = page("<p>one</p>")
    policy = text.index("Content-Security-Policy")
    assert policy < text.index("<style>")
    assert policy < text.index("<link")
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    assert found[1].startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert "script-src" not in found[1]
    assert "http" not in found[1]


def test_equal_figures_have_ids_of_their_own() -> None:
    bodies = [
        figure_html(drawing(), name=name, caption=name, alt=name) for name in ("one", "two", "3!")
    ]
    markup = check_page(page(*bodies))
    drawn = [e for e in markup.elements if "svg" in e.path and "id" in e.attributes]
    assert drawn
    for element in drawn:
        assert element.attributes["id"].startswith(("one-", "two-", "x3-"))
    assert {e.attributes["id"] for e in markup.all("figure")} == {
        "figure-one",
        "figure-two",
        "figure-x3",
    }


def test_a_drawing_keeps_what_it_draws_and_loses_the_rest() -> None:
    text = figure_html(drawing(), name="one", caption="Two.", alt="three")
    markup = read_markup(text)
    [svg] = markup.all("svg")
    assert svg.attributes["role"] == "img"
    assert float(svg.attributes["width"]) == pytest.approx(3.5 * 96 * 1.4, abs=1)
    for tag in ("metadata", "style"):
        assert not markup.all(tag)
    assert "http" not in text
    assert "bold" not in text, "comments of the file stay out"
    assert len(markup.all("use")) > 20
    assert any("clip-path" in e.attributes for e in markup.elements)
    assert any("fill: url(#one-" in e.attributes.get("style", "") for e in markup.elements)
    assert not re.search(r' d="[^"]*\d\.\d{3}', text)


def test_a_map_is_a_picture_inside_the_drawing() -> None:
    markup = read_markup(figure_html(drawing(heat=True), name="map", caption="", alt=""))
    [image] = markup.all("image")
    assert re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]+", image.attributes["href"])


def test_the_same_figure_gives_the_same_text() -> None:
    one, two = (figure_html(drawing(), name="n", caption="c", alt="a") for _ in range(2))
    assert one == two


def test_tables_align_mark_and_break_lines() -> None:
    text = table_html(
        ["name", "final\n%", "mean-\nmodel"],
        [["FedHP", "93.9", "94"], ["PENS", "92.2", ""]],
        caption="two rows",
        numeric=(1, 2),
        marks={(0, 1): "good", (1, 1): "bad", (1, 0): "quiet"},
    )
    markup = read_markup(text)
    heads = [e for e in markup.all("th") if e.attributes["scope"] == "col"]
    assert [e.text for e in heads] == ["name", "final%", "mean-model"]
    assert text.count("<br>") == 1
    assert [e.attributes.get("class") for e in heads] == [None, "num", "num"]
    cells = {e.text: e.attributes.get("class") for e in markup.all("td")}
    assert cells == {"93.9": "num good", "94": "num", "92.2": "num bad", "": "num"}
    rows = [e for e in markup.all("th") if e.attributes["scope"] == "row"]
    assert [(e.text, e.attributes.get("class")) for e in rows] == [
        ("FedHP", None),
        ("PENS", "quiet"),
    ]
    assert markup.all("caption")[0].text == "two rows"
    assert not read_markup(table_html(["a"], [])).all("caption")


def test_mistakes_of_a_caller_are_found() -> None:
    with pytest.raises(ValueError, match="2 cells under 1"):
        table_html(["a"], [["b", "c"]])
    with pytest.raises(ValueError, match="unknown mark 'green'"):
        table_html(["a"], [["b"]], marks={(0, 0): "green"})
    twice = [Section("A", "a", ""), Section("B", "a", "")]
    for sections in (twice, [Section("A", 'a" onclick="', "")], [Section("A", "", "")]):
        with pytest.raises(ValueError, match="anchor"):
            render_page(title="t", lead="", sections=sections)


def test_paragraphs_and_folds() -> None:
    assert text_html("one\n\n two \n \nthree") == "<p>one</p>\n<p>two</p>\n<p>three</p>"
    assert text_html("") == ""
    markup = read_markup(details_html("more", "<p>inside</p>"))
    assert markup.all("summary")[0].text == "more"
    assert "open" not in markup.all("details")[0].attributes
    assert markup.all("p")[0].path[0] == "details"


def test_slugs() -> None:
    assert slug("fedhp:deadline=fill") == "fedhp-deadline-fill"
    assert slug("Ünï!") == "n"
    assert slug("2 b") == "x2-b"
    assert slug("") == "x"
