"""Reads a page of ours as a strict reader would: every tag closed in order, every name unique, every cell kept."""

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Tables as rows of (text, value of its <data>) cells, figures, anchors and links of a document."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.images, self.captions = [], [], [], [], 0
        self.tables, self.math, self.tags = [], 0, set()
        self.cell = self.value = None
        self.reasons, self.listing = [], False
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.add(tag)
        if "id" in attributes:
            assert attributes["id"] not in self.ids, f"id {attributes['id']} twice"
            self.ids.append(attributes["id"])
        assert not any(name.startswith("on") for name in attributes), attributes
        if "href" in attributes:
            self.links.append(attributes["href"])
        if tag == "img":
            assert "figure" in self.open
            self.images.append(attributes)
        self.captions += tag == "figcaption"
        self.math += tag == "math"
        if tag == "ul":
            self.listing = attributes.get("class") == "why"
        if tag == "li" and self.listing:
            self.reasons.append("")
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.cell, self.value = [], None
        elif tag == "data":
            self.value = attributes["value"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()
        self.listing &= tag != "ul"
        if tag in ("td", "th"):
            self.tables[-1][-1].append(("".join(self.cell), self.value))
            self.cell = None

    def handle_data(self, data):
        if self.listing and "li" in self.open:
            self.reasons[-1] += data
        if self.cell is not None:
            self.cell.append(data)

    def verdict_rows(self):
        """The rows of all verdict tables, as dictionaries of cells by heading."""
        found = []
        for head, *rows in self.tables:
            names = [text for text, _ in head]
            if names[:3] == ["kind", "observable", "law"]:
                found += [dict(zip(names, row, strict=True)) for row in rows]
        return found


def self_contained(text):
    """The page, checked: it asks for nothing from outside, its links lead somewhere, its figures are described."""
    page = Page(text)
    assert "http:" not in text
    assert "https:" not in text
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert page.links
    assert all(link[0] == "#" and link[1:] in page.ids for link in page.links)
    assert len(page.images) == page.captions
    for image in page.images:
        assert image["src"].startswith("data:image/svg+xml;base64,")
        assert len(image["alt"]) > 40
    return page


def same_verdicts(page, rows):
    """Whether the page has exactly the rows of a report's plain data, number for number."""
    shown = page.verdict_rows()
    assert len(shown) == len(rows)
    for cells, reason, row in zip(shown, page.reasons, rows, strict=True):
        assert cells["kind"][0] == row["kind"]
        assert cells["observable"][0] == row["observable"].replace("_", " ")
        assert (
            cells["law"][0].replace("\u00b2", "^2")
            == row["law"] + {"saturated": "", "before saturation": ", early"}[row["regime"]]
        )
        assert cells["verdict"][0].split()[1] == row["verdict"]
        assert reason.endswith(f"({row['kind']}) {row['verdict']}: {row['reason']}")
        for heading, name in (("exponent", "exponent"), ("constant", "constant"), ("predicted", "predicted_constant")):
            if heading == "exponent" and row["law"] == "log log t":
                continue
            text, value = cells[heading]
            assert (text == "-") == (row[name] is None)
            assert row[name] is None or float(value) == row[name]
        window = row["window"]
        if window is None:
            assert cells["ln t"][0] == cells["times"][0] == "-"
        else:
            assert cells["ln t"][0] == f"{window['log_time_start']:.5g} to {window['log_time_end']:.5g}"
            assert cells["times"][0] == str(window["points"])
    return True
