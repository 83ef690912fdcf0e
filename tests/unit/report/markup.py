"""A page read back with the standard parser: nesting, ids, links, texts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "hr", "input"}
ADDRESSES = ("href", "src", "srcset", "action", "data", "poster", "xlink:href")


@dataclass
class Element:
    """A tag with what it says of itself."""

    tag: str
    attributes: dict[str, str]
    path: list[str]
    text: str = ""


@dataclass
class Markup:
    """All elements of a page, in order."""

    elements: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        return [element for element in self.elements if element.tag == tag]

    @property
    def ids(self) -> list[str]:
        return [e.attributes["id"] for e in self.elements if "id" in e.attributes]

    @property
    def addresses(self) -> list[str]:
        """Everything a browser might fetch or follow."""
        found = [e.attributes[a] for e in self.elements for a in ADDRESSES if a in e.attributes]
        for element in self.elements:
            texts = [element.attributes.get("style", "")]
            texts += [element.text] if element.tag == "style" else []
            for text in texts:
                assert "@import" not in text
                found += re.findall(r"url\(([^)]*)\)", text)
        return found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.markup = Markup()
        self.open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice in <{tag}>"
        values = {name: value or "" for name, value in attrs}
        element = Element(tag, values, [each.tag for each in self.open])
        self.markup.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            # Only drawings may close a tag within itself.
            assert any(each.tag == "svg" for each in self.open), f"<{tag}/> outside a drawing"
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


def read_markup(text: str) -> Markup:
    """Parse; every tag must be closed where it was opened."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open, [element.tag for element in reader.open]
    return reader.markup


def check_page(text: str) -> Markup:
    """What holds for every page: ids once, references to be found, nothing from outside."""
    markup = read_markup(text)
    assert len(markup.ids) == len(set(markup.ids))
    for address in markup.addresses:
        if address.startswith("#"):
            assert address[1:] in markup.ids, address
        else:
            assert address.startswith("data:"), address
    for element in markup.elements:
        assert not any(name.startswith("on") for name in element.attributes)
        for value in element.attributes.values():
            for target in re.findall(r"url\(#([^)]*)\)", value):
                assert target in markup.ids, value
    assert not markup.all("script")
    assert text.count("<h1>") == 1
    policies = [
        e.attributes["content"]
        for e in markup.all("meta")
        if e.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert "default-src 'none'" in policies[0]
    return markup
