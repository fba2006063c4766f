"""Text of the pictures in docs/recordings."""

from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

_TEXT = "{http://www.w3.org/2000/svg}text"


def lines_of(picture: Path) -> list[str]:
    """Return the lines that an SVG shows, from top to bottom.

    Raises:
        ElementTree.ParseError: the file is not well-formed XML.
    """
    rows: dict[float, list[tuple[float, str]]] = defaultdict(list)
    for element in ElementTree.parse(picture).iter(_TEXT):  # noqa: S314 - our own file
        place = float(element.attrib["y"]), float(element.attrib["x"])
        rows[place[0]].append((place[1], element.text or ""))
    return ["".join(text for _, text in sorted(rows[y])).replace("\xa0", " ").rstrip() for y in sorted(rows)]
