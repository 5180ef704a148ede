"""Traces with names that HTML could misread, and a parser of the pages made from them."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import sightline as sl
from sightline.lens.draw.page import (
    FigureSection,
    ProseSection,
    TableSection,
    TokensSection,
    TraceSection,
    page_of,
)
from sightline.lens.trace.subject import Token
from sightline.lens.trace.trace import Trace, trace_of
from tests.support.tiny import (
    DECODERS,
    ENCODER_DECODERS,
    inputs,
    make,
)

NASTY = "</script><img src=x onerror=alert(1)>\u2028 & \" ' {title} 日本語"


class Tiny:
    """A tiny model with a name."""

    tokenizer = None
    name = "tiny"

    def __init__(self, config: sl.ModelConfig) -> None:
        self.transformer = make(config)


def traced(config: sl.ModelConfig, time: int = 11) -> Trace:
    given = inputs(config, batch=1, time=time)
    source = given["source"][0].tolist() if "source" in given else None
    return trace_of(Tiny(config), given["tokens"][0].tolist(), source=source)


def renamed(trace: Trace, texts: list[str]) -> Trace:
    """The same with these texts as its tokens."""
    return replace(
        trace, tokens=tuple(Token(n, text) for n, text in enumerate(texts)), text="".join(texts)
    )


class Elements(HTMLParser):
    """The page as a browser's parser reads it: elements, and the text of scripts by id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("id") or ""

    def handle_data(self, data: str) -> None:
        self.texts[self.inside] = self.texts.get(self.inside, "") + data


def everything(texts: list[str]) -> str:
    """One page with every kind of section, and a nasty text in each place that takes one."""
    trace = renamed(traced(DECODERS["rotary"]), texts)
    return page_of(
        [
            ProseSection(NASTY, [NASTY]),
            TokensSection(NASTY, NASTY, [(NASTY, 0.5, [(NASTY, 0.25)]), (" 猫", 1.0, [])]),
            TraceSection(trace, NASTY, NASTY, "lines", 1, 2),
            FigureSection(
                NASTY,
                NASTY,
                '<svg xmlns="http://www.w3.org/2000/svg" id="a"><script>alert(1)</script></svg>',
            ),
            TableSection(NASTY, NASTY, [NASTY, "n"], [[NASTY, 1234], ["x", 0.123456]]),
            TraceSection(traced(ENCODER_DECODERS["t5"]), view="alignment"),
        ],
        title=NASTY,
    )
