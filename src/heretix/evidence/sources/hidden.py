"""Text that a reader of a page or a PDF wouldn't see, taken out before a model could be shown it.

A page's own styles are read, with no precedence beyond their order and `!important`. Nothing is
fetched and no script is run: what a sheet or script from elsewhere hides isn't seen here.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from heretix.evidence.text.injection import screen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_WORDS: Final = 3
"""Words that make hidden text worth a flag; fewer are labels of buttons."""
_MAX_SHEET_CHARS: Final = 200_000
_MAX_RULES: Final = 500
_MAX_MATCHES: Final = 1_000_000
_SCREENED_CHARS: Final = 20_000
_SAME_COLOUR: Final = 16
"""Of 255 steps of a channel: a difference that nobody sees."""

Colour = tuple[float, ...]
_WHITE: Final = (255.0, 255.0, 255.0)
_CLEAR: Final = ()  # Of text that shows nothing
_NAMED: Final[Mapping[str, Colour]] = {
    "transparent": _CLEAR,
    **dict.fromkeys(("white", "snow", "ivory", "ghostwhite", "floralwhite", "whitesmoke"), _WHITE),
    "black": (0, 0, 0),
    "red": (255, 0, 0),
    "green": (0, 128, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "gray": (128, 128, 128),
    "grey": (128, 128, 128),
}
_NUMBER: Final = re.compile(r"-?(?:\d+\.?\d*|\.\d+)")
_NO_TEXT: Final = frozenset({"script", "style", "head"})
_HTML_COMMENT: Final = re.compile(r"<!--(.*?)(?:-->|\Z)", re.DOTALL)
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_AT_RULE: Final = re.compile(r"@[^{};]*(?:;|\{(?:[^{}]*\{[^{}]*\})*[^{}]*\})")
_RULE: Final = re.compile(r"([^{}]+)\{([^{}]*)\}")
_COMPOUND: Final = re.compile(r"([a-z][\w-]*|\*)?((?:[.#][\w-]+)*)", re.IGNORECASE)
_AWAY: Final = re.compile(  # A margin of -100% is how columns were made
    r"-(?:\d{4,}|[5-9]\d\d)(?:\.\d+)?(?:px|pt)|-(?:[5-9]\d|\d{3,})(?:\.\d+)?r?em"
    r"|-\d{3,}(?:\.\d+)?v[wh]|-(?:[2-9]\d\d|\d{4,})(?:\.\d+)?%"
)
_ASIDE: Final = re.compile(r"(?:\d{5,}(?:\.\d+)?px|\d{3,}(?:\.\d+)?(?:r?em|vw)|[2-9]\d{2,}%)")
_TINY: Final = re.compile(r"0*(?:\.\d+)?(?:px|pt)?|0*1(?:\.0*)?(?:px|pt)|0*(?:\.0\d*)?(?:r?em|%)")
_FONT_SIZE: Final = re.compile(r"(?:^|\s)((?:\d+\.?\d*|\.\d+)(?:px|pt|r?em|%)?)(?=\s|/)")
_CLIPPED: Final = re.compile(
    r"rect\((?:[01](?:px)?[\s,]*){4}\)|inset\((?:[5-9]\d|100)%|circle\(0|polygon\(\s*0[^,]*\)"
)
_MOVED: Final = re.compile(
    r"translate\w*\([^)]*-(?:\d{4,}|[5-9]\d\dp)|scale\w*\(\s*(?:0*\.0\d*|0+)\s*[,)]"
)
_PLACES: Final = ("left", "top", "right", "bottom", "margin-left", "margin-top", "text-indent")
_READ: Final = frozenset(
    {
        *_PLACES,
        *("display", "visibility", "content-visibility", "opacity", "filter"),
        *("transform", "clip", "clip-path"),
        *("color", "background", "background-color", "background-image", "font", "font-size"),
        *("overflow", "height", "width", "max-height", "max-width"),
    }
)
_Style = dict[str, str]


@dataclass(frozen=True, slots=True)
class _Look:
    """Looks of text, as far as children inherit them."""

    visible: bool = True
    sized: bool = True
    colour: Colour | None = (0, 0, 0)
    ground: Colour | None = _WHITE  # None is a picture, or a colour that can't be told

    @property
    def unseen(self) -> bool:
        return not (self.visible and self.sized) or _merges(self.colour, self.ground)


def drop_hidden(tree: Any, markup: str) -> bool:
    """Take out of a parsed page what a reader doesn't see, and tell whether that was worth a flag.

    Honest pages are full of comments, templates and what is kept from screen readers: those are
    worth it only where they hold instructions.
    """
    sheet = _Sheet(tree)
    looks: dict[Any, _Look | None] = {}  # None within what goes, or never was text
    gone: list[Any] = []
    unseen: list[str] = []
    # The parser leaves comments out of the tree.
    quiet: list[str] = _HTML_COMMENT.findall(markup)
    for element in tree.iter():
        look = looks.get(element.getparent(), _Look())
        looks[element] = None
        if look is None or element.tag in _NO_TEXT or not isinstance(element.tag, str):
            continue
        if element.tag == "template" or element.get("aria-hidden", "").strip().lower() == "true":
            quiet.append(element.text_content())
            gone.append(element)
        elif _is_hidden(element, style := sheet.style_of(element)):
            unseen.append(element.text_content())
            gone.append(element)
        else:
            looks[element] = look = _inherit(look, style)
            element.attrib.pop("style", None)  # It is judged; the extraction only guesses by it
            if look.unseen and element.text:
                unseen.append(element.text)
                element.text = None
    for element in gone:
        element.drop_tree()
    for element, look in looks.items():
        # What stands behind a child is its parent's text.
        for child in element if look is not None and look.unseen else ():
            unseen.append(child.tail or "")
            child.tail = None
    return len(" ".join(unseen).split()) >= _WORDS or any(
        bool(screen(text)) for text in _chunks("\n".join(quiet))
    )


def _chunks(text: str) -> Iterator[str]:
    """The beginning of a text, in lengths that are screened fast."""
    for start in range(0, min(len(text), 10 * _SCREENED_CHARS), _SCREENED_CHARS):
        yield text[start : start + _SCREENED_CHARS]


class _Sheet:
    """The rules of a page's own style sheets that may hide something, and its elements' styles."""

    def __init__(self, tree: Any) -> None:
        self._left = _MAX_MATCHES
        self._rules: dict[str, list[tuple[list[tuple[str, frozenset[str]]], _Style]]] = {}
        texts = (one.text or "" for one in tree.iter("style") if one.get("media") != "print")
        css = _COMMENT.sub(" ", "\n".join(texts)[:_MAX_SHEET_CHARS])
        count = 0
        for selectors, body in _RULE.findall(_AT_RULE.sub(" ", css)):
            style = _read_declarations(body)
            for selector in selectors.split(",") if style else ():
                parts = _compounds(selector)
                if parts and count < _MAX_RULES:
                    count += 1
                    tag, marks = parts[-1]
                    self._rules.setdefault(min(marks, default=tag), []).append((parts, style))

    def style_of(self, element: Any) -> _Style:
        """Collect what is declared for an element itself: by sheets, attributes, its own style."""
        style: _Style = {}
        if element.get("bgcolor"):
            style["background-color"] = element.get("bgcolor").strip().lower()
        if colour := element.get("text" if element.tag == "body" else "color"):
            style["color"] = colour.strip().lower()
        if self._rules:
            for key in (element.tag, "*", *sorted(_marks(element))):
                for parts, declared in self._rules.get(key, ()):
                    if self._matches(element, parts):
                        _add(style, declared)
        if own := element.get("style"):
            _add(style, _read_declarations(own))
        return style

    def _matches(self, element: Any, parts: Sequence[tuple[str, frozenset[str]]]) -> bool:
        at, left = element, list(parts)
        while at is not None and left:
            self._left -= 1
            if self._left < 0:
                return False
            tag, marks = left[-1]
            if tag in {"*", at.tag} and marks <= _marks(at):
                left.pop()
            elif at is element:
                return False
            at = at.getparent()
        return not left


def _marks(element: Any) -> frozenset[str]:
    marks = {f".{name}" for name in (element.get("class") or "").split()}
    return frozenset(marks | ({f"#{element.get('id')}"} if element.get("id") else set()))


def _compounds(selector: str) -> list[tuple[str, frozenset[str]]]:
    """A selector's parts, or nothing where it says more than names, classes and ids."""
    parts = []
    for part in selector.replace(">", " ").split():
        match = _COMPOUND.fullmatch(part)
        if match is None:
            return []
        marks = frozenset(re.findall(r"[.#][\w-]+", match[2]))
        parts.append(((match[1] or "*").lower(), marks))
    return parts


def _read_declarations(body: str) -> _Style:
    """Declarations that may hide something, in lower case."""
    pairs = (one.partition(":") for one in body[:_SCREENED_CHARS].lower().split(";"))
    return {
        name.strip(): " ".join(value.split())
        for name, _, value in pairs
        if name.strip() in _READ and value.strip()
    }


def _add(style: _Style, declared: _Style) -> None:
    """Lay declarations over those before; what is important stays."""
    for name, value in declared.items():
        if "!important" in value or "!important" not in style.get(name, ""):
            style.pop(name, None)  # Of two names for one thing the last stands
            style[name] = value


def _is_hidden(element: Any, style: _Style) -> bool:
    """Tell whether an element isn't shown, with all that it holds."""
    if element.tag in {"html", "body"}:
        return False  # A page that shows itself by a script
    value = {name: text.replace("!important", "").strip() for name, text in style.items()}
    return bool(
        (element.get("hidden") is not None and value.get("display", "none") == "none")
        or value.get("display") == "none"
        or value.get("content-visibility") == "hidden"
        or _number(value.get("opacity")) < 0.05
        or re.search(r"opacity\(\s*(?:0*\.0\d*|0)%?\s*\)", value.get("filter", ""))
        or any(_AWAY.search(value.get(place, "")) for place in _PLACES)
        or any(_ASIDE.match(value.get(place, "")) for place in ("left", "right", "text-indent"))
        or "-100%" in {value.get("left"), value.get("top"), value.get("text-indent")}
        or _MOVED.search(value.get("transform", ""))
        or _CLIPPED.search(f"{value.get('clip', '')} {value.get('clip-path', '')}")
        or (
            value.get("overflow") in {"hidden", "clip"}
            and any(
                _TINY.fullmatch(value.get(side, "none"))
                for side in ("height", "width", "max-height", "max-width")
            )
        )
    )


def _inherit(look: _Look, style: _Style) -> _Look:
    """The look of an element within one of this look."""
    for name, text in style.items():
        value = text.replace("!important", "").strip()
        if name == "visibility" and value in {"hidden", "collapse", "visible"}:
            look = replace(look, visible=value == "visible")
        elif name == "color" and value not in {"inherit", "currentcolor"}:
            look = replace(look, colour=_colour(value))
        elif name == "background-image" and value != "none":
            look = replace(look, ground=None)
        elif name in {"background", "background-color"}:
            ground = None if "(" in value and not value.startswith("rgb") else _colour(value)
            look = look if ground == _CLEAR else replace(look, ground=ground)
        elif name in {"font", "font-size"}:
            if name == "font":
                size = _FONT_SIZE.search(value)
                value = size[1] if size else "medium"
            # A share of nothing is nothing.
            relative = value.endswith(("em", "%")) and not value.endswith("rem")
            tiny = _TINY.fullmatch(value) is not None
            look = replace(look, sized=not tiny and (look.sized or not relative))
    return look


def _number(text: str | None) -> float:
    match = _NUMBER.match(text or "")
    return float(match[0]) * (0.01 if text and "%" in text else 1) if match else 1.0


def _colour(text: str) -> Colour | None:
    """A colour by its name, hexadecimal or rgb(); None where it can't be told."""
    word = text.partition(" ")[0]
    if text.startswith(("rgb", "hsla(")):
        parts = [float(part) for part in _NUMBER.findall(text)[:4]]
        if len(parts) == 4 and parts[3] < 0.05:
            return _CLEAR
        return tuple(parts[:3]) if len(parts) >= 3 and text.startswith("rgb") else None
    if re.fullmatch(r"#(?:[0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})", word):
        digits = word[1:] if len(word) > 5 else "".join(2 * digit for digit in word[1:])
        channels = tuple(float(int(digits[at : at + 2], 16)) for at in range(0, len(digits), 2))
        return _CLEAR if len(channels) == 4 and channels[3] < 13 else channels[:3]
    return _NAMED.get(word)


def _merges(colour: Colour | None, ground: Colour | None) -> bool:
    """Tell whether text of a colour can't be told from what is behind it."""
    if colour is None or colour == _CLEAR:
        return colour == _CLEAR
    near = zip(colour, ground or (), strict=False)
    return bool(ground) and all(abs(one - other) <= _SAME_COLOUR for one, other in near)


_INVISIBLE: Final = frozenset({3, 7})  # Ways of rendering that paint nothing
_POINT: Final = 1.0
"""Height below which nobody reads letters, in points."""
_MAX_PAINTED: Final = 1000
_SHOWS: Final = {b"Tj": 0, b"TJ": 0, b"'": 0, b'"': 2}
_FILLS: Final = frozenset({b"f", b"F", b"f*", b"B", b"B*", b"b", b"b*"})
_IDENTITY: Final = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
_DAMAGE: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that odd operands raise: such an operator changes nothing; the parser judges it."""
_FLAG_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class _Pen:
    """Part of a PDF's graphics state that decides whether text can be seen."""

    colour: Colour | None = (0, 0, 0)
    mode: int = 0
    size: float = 0.0
    alpha: float = 1.0


@dataclass(slots=True)
class PdfPage:
    """Watches a page being read, and empties the operands of text that nobody would see.

    Its methods are pypdf's visitors; forms within the page come through them too.
    """

    page: Any
    hidden_bytes: int = 0
    _pen: _Pen = field(default_factory=_Pen)
    _saved: list[_Pen] = field(default_factory=list)
    _forms: list[tuple[Any, Any, int]] = field(default_factory=list)
    """Within a form: its resources, where its page puts it, and what was saved before it."""
    _path: list[tuple[float, float]] = field(default_factory=list)
    _painted: list[tuple[tuple[float, float, float, float], Colour | None]] = field(
        default_factory=list
    )

    @property
    def hidden(self) -> bool:
        """Text was hidden that is worth a flag."""
        return self.hidden_bytes >= _FLAG_BYTES

    def before(self, operator: bytes, operands: Any, cm: Any, tm: Any) -> None:
        """Follow the state up to an operator, and take its text away if it can't be seen."""
        if operator == b"Do":
            # Whatever is wrong with the form, `after` finds what it takes off again.
            self._forms.append((*self._within, len(self._saved)))
            self._saved.append(self._pen)
        with contextlib.suppress(*_DAMAGE):
            self._follow(operator, operands, _multiply(cm, self._within[1]), tm)

    def after(self, operator: bytes, operands: Any, cm: Any, tm: Any) -> None:
        """Take up the state from before a form."""
        if operator == b"Do" and self._forms:
            depth = self._forms.pop()[2]
            self._pen = self._saved[depth] if depth < len(self._saved) else self._pen
            del self._saved[depth:]

    @property
    def _within(self) -> tuple[Any, Any]:
        """Resources, and the place of what is read now."""
        if self._forms:
            return self._forms[-1][:2]
        return self.page.get("/Resources", {}), _IDENTITY

    def _follow(self, operator: bytes, operands: Any, cm: Any, tm: Any) -> None:
        if operator in _SHOWS:
            at = _SHOWS[operator]
            length = _length(operands[at])
            if length and self._is_unseen(cm, tm, length):
                self.hidden_bytes += length
                operands[at] = [] if operator == b"TJ" else ""
        elif operator == b"q":
            self._saved.append(self._pen)
        elif operator == b"Q" and self._saved:
            self._pen = self._saved.pop()
        elif operator == b"Do":
            self._enter(str(operands[0]), cm)
        elif operator == b"gs":
            self._pen = replace(self._pen, alpha=self._alpha(str(operands[0])))
        elif operator == b"Tr":
            self._pen = replace(self._pen, mode=int(operands[0]))
        elif operator == b"Tf":
            self._pen = replace(self._pen, size=abs(float(operands[1])))
        elif operator in {b"g", b"rg", b"k", b"sc", b"scn", b"cs"}:
            self._pen = replace(self._pen, colour=_ink(operator, operands))
        else:
            self._draw(operator, operands, cm)

    def _enter(self, name: str, cm: Any) -> None:
        resources, _, depth = self._forms[-1]
        drawn = _resource(resources, "/XObject", name)
        if drawn.get("/Subtype") == "/Image":
            self._paint([(0, 0), (0, 1), (1, 0), (1, 1)], cm, None)
        matrix = _multiply(drawn.get("/Matrix", _IDENTITY), cm)
        self._forms[-1] = (drawn.get("/Resources", resources), matrix, depth)

    def _draw(self, operator: bytes, operands: Any, cm: Any) -> None:
        if operator == b"re" and len(operands) >= 4:
            x, y, width, height = map(float, operands[:4])
            self._path += [(x, y), (x + width, y + height)]
        elif operator in {b"m", b"l", b"c", b"v", b"y"} and len(operands) >= 2:
            self._path.append((float(operands[-2]), float(operands[-1])))
        elif operator in _FILLS or operator in {b"n", b"S", b"s"}:
            if operator in _FILLS:
                self._paint(self._path, cm, self._pen.colour)
            self._path = []
        elif operator == b"sh":
            self._painted.append(((-1e9, -1e9, 1e9, 1e9), None))

    def _paint(self, path: Sequence[tuple[float, float]], cm: Any, colour: Colour | None) -> None:
        if len(path) < 2 or len(self._painted) >= _MAX_PAINTED:
            return
        places = [_place(cm, x, y) for x, y in path]
        xs, ys = [x for x, _ in places], [y for _, y in places]
        self._painted.append(((min(xs), min(ys), max(xs), max(ys)), colour))

    def _is_unseen(self, cm: Any, tm: Any, length: int) -> bool:
        x, y = _place(cm, float(tm[4]), float(tm[5]))
        height = self._pen.size * _scale(tm) * _scale(cm)
        if self._pen.mode in _INVISIBLE or self._pen.alpha < 0.05 or height < _POINT:
            return True
        left, bottom, right, top = map(float, self.page.cropbox)
        # Text may begin outside and reach in: to either side as far as it is long.
        reach = height * (length + 1)
        if not (left - reach <= x <= right + reach and bottom - reach <= y <= top + reach):
            return True
        upright = abs(float(tm[1])) < 1e-6 and abs(float(cm[1])) < 1e-6
        if upright and (x > right or y > top or y < bottom - height):
            return True
        if self._pen.mode in {1, 2, 5, 6}:
            return False  # Outlined, in a colour of its own
        over = (
            colour
            for (x0, y0, x1, y1), colour in reversed(self._painted)
            if x0 <= x <= x1 and y0 <= y + height / 4 <= y1
        )
        return _merges(self._pen.colour, next(over, _WHITE))

    def _alpha(self, name: str) -> float:
        state = _resource(self._within[0], "/ExtGState", name)
        return float(state.get("/ca", self._pen.alpha))


def _resource(resources: Any, kind: str, name: str) -> Any:
    """A named resource; nothing where there is none."""
    return resources.get_object().get(kind, {}).get_object()[name].get_object()


def _multiply(first: Any, then: Any) -> tuple[float, ...]:
    """One matrix after the other."""
    a, b, c, d, e, f = map(float, first)
    return (*_turn(then, a, b), *_turn(then, c, d), *_place(then, e, f))


def _length(text: Any) -> int:
    """Bytes or characters that an operand shows, blanks aside."""
    if isinstance(text, list):
        return sum(_length(one) for one in text if isinstance(one, str | bytes))
    return len(text.strip()) if isinstance(text, str | bytes) else 0


def _ink(operator: bytes, operands: Sequence[Any]) -> Colour | None:
    """The colour that an operator sets; None for spaces that aren't grey, RGB or CMYK."""
    try:
        values = [float(value) for value in operands]
    except (TypeError, ValueError):
        return None
    if operator == b"g" and len(values) == 1:
        return (255 * values[0],) * 3
    if len(values) == 3:
        return tuple(255 * value for value in values)
    if len(values) == 4:
        *inks, key = values
        return tuple(255 * (1 - min(1.0, ink + key)) for ink in inks)
    return None


def _turn(matrix: Any, x: float, y: float) -> tuple[float, float]:
    a, b, c, d = map(float, matrix[:4])
    return a * x + c * y, b * x + d * y


def _place(matrix: Any, x: float, y: float) -> tuple[float, float]:
    across, up = _turn(matrix, x, y)
    return across + float(matrix[4]), up + float(matrix[5])


def _scale(matrix: Any) -> float:
    """Factor by which a matrix enlarges heights."""
    return float((float(matrix[2]) ** 2 + float(matrix[3]) ** 2) ** 0.5)
