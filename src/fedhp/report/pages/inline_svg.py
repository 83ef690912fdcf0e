"""A drawing made fit to stand inside a page: unique ids, no links outwards, fewer digits."""

from __future__ import annotations

import re
from html import escape
from xml.etree import ElementTree

SCALE = 1.4  # a paper's 8 points are small on a screen
PIXELS = 96 / 72  # per point
BROAD = 300  # points; too broad to be read on a phone, where it may be moved sideways
LEFT_OUT = ("metadata", "style")  # a style of one drawing would hold for the whole page
COORDINATES = ("d", "x", "y")
DIGITS = re.compile(r"-?\d+\.\d{3,}")


def inline_svg(svg: str, *, prefix: str, alt: str) -> str:
    """An SVG file as an element of an HTML page; ids that nothing refers to are left out."""
    root = ElementTree.fromstring(svg)
    text = ElementTree.tostring(root, encoding="unicode")
    wanted = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    for element in list(root.iter()):
        _bare(element)
        for child in [child for child in element if _name(child.tag) in LEFT_OUT]:
            element.remove(child)
        _rename(element, prefix, wanted)
    _, _, width, height = (float(part) for part in root.attrib["viewBox"].split())
    inside = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    size = f'width="{SCALE * PIXELS * width:.0f}" height="{SCALE * PIXELS * height:.0f}"'
    broad = ' class="broad"' if width > BROAD else ""
    inside = re.sub(r">\s+<", "><", inside)
    return (
        f'<svg{broad} role="img" aria-label="{escape(alt)}" {size} '
        f'viewBox="0 0 {width:g} {height:g}">'
        f"{inside.strip()}</svg>"
    )


def _name(tag: str) -> str:
    """A tag or attribute without its namespace: a page has none."""
    return tag.rpartition("}")[2]


def _bare(element: ElementTree.Element) -> None:
    element.tag = _name(element.tag)
    for key in list(element.attrib):
        value = element.attrib.pop(key)
        if key in COORDINATES:
            # A hundredth of a point is less than any screen or printer shows.
            value = DIGITS.sub(lambda found: f"{float(found[0]):.2f}", value)
            value = " ".join(value.split())
        element.attrib[_name(key)] = value


def _rename(element: ElementTree.Element, prefix: str, wanted: set[str]) -> None:
    own = element.attrib.pop("id", None)
    if own in wanted:
        element.attrib["id"] = f"{prefix}-{own}"
    for key, value in element.attrib.items():
        if key == "href" and value.startswith("#"):
            element.attrib[key] = f"#{prefix}-{value[1:]}"
        elif key == "href":
            element.attrib[key] = "".join(value.split())
        elif "url(#" in value:
            element.attrib[key] = value.replace("url(#", f"url(#{prefix}-")
