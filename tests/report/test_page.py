"""The page has the ledger's own numbers, needs no network, and is readable without its pictures."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Any

import pytest

from spotray.errors import ConfigError
from spotray.events import Event, LaunchTried, NodeUp, Reported, Warned
from spotray.ledger.account import account
from spotray.ledger.goodput import goodput
from spotray.ledger.rundir import RunEvents
from spotray.ledger.sweep import summarize_sweep
from spotray.report.page import Page, Section, Table, to_html
from spotray.report.plain import plain
from spotray.report.run import page_of_run
from spotray.report.sweep_page import page_of_sweep
from tests.ledger.story import four_losses
from tests.ledger.sweep_story import two_trials

EVIL = "</script><script>alert('<b>&')</script>"


@dataclass
class Seen(HTMLParser):
    """What a browser would find in a page."""

    scripts: list[str] = field(default_factory=list)
    json: dict[str, Any] = field(default_factory=dict)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: str = ""
    inside: str = ""
    name: str | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside, self.name = tag, dict(attrs).get("id")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script" and self.name:
            self.json[self.name] = json.loads(data, parse_constant=pytest.fail)
        elif self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.text += f" {data}"

    def ids(self) -> set[str | None]:
        return {attrs.get("id") for _, attrs in self.tags}


def seen(page: Page) -> Seen:
    found = Seen()
    found.feed(to_html(page))
    return found


def run_of(events: list[Event], **fields: Any) -> RunEvents:
    ordered = tuple(sorted(events, key=lambda event: event.at_s))
    return RunEvents(run_dir="/runs/vit", events=ordered, journals=(), **fields)


@pytest.fixture
def story() -> list[Event]:
    return four_losses().events


def test_the_pages_numbers_are_those_of_the_folds(story: list[Event]) -> None:
    found = seen(page_of_run(run_of(story)))
    assert found.json["report-data"]["cost"] == plain(account(story))
    assert found.json["report-data"]["goodput"] == plain(goodput(story))
    curves = {one["name"]: one for f in found.json["figures"] for one in f["data"] if "name" in one}
    bill = account(story)
    assert curves["node time"]["y"][-1] == pytest.approx(bill.total.cost_usd, abs=1e-6)
    on_demand = curves["the same nodes, on demand"]["y"][-1]
    assert on_demand == pytest.approx(bill.total.on_demand_cost_usd, abs=1e-6)


def test_every_picture_has_a_place_words_and_a_table(story: list[Event]) -> None:
    story.append(Reported(at_s=1100.0, step=5, epoch=1, metrics={"accuracy": 0.5, "note": "x"}))
    page = page_of_run(run_of(story))
    found = seen(page)
    drawn = [figure["id"] for figure in found.json["figures"]]
    assert drawn == [
        *("nodes", "world", "throughput", "curve-0", "curve-1", "money", "goodput", "hazard")
    ]
    assert set(drawn) <= found.ids()
    boxes = [attrs for _, attrs in found.tags if attrs.get("role") == "img"]
    assert len(boxes) == len(drawn)
    assert all(box["aria-label"] and box["tabindex"] == "0" for box in boxes)
    assert all(section.alternative for section in page.sections if section.figures)
    links = {attrs["href"] for tag, attrs in found.tags if tag == "a"}
    assert {f"#{section}" for section in ("money-section", "decisions", "losses")} <= links


def test_the_page_asks_nobody_for_anything(story: list[Event]) -> None:
    found = seen(page_of_run(run_of(story)))
    for tag, attrs in found.tags:
        assert attrs.get("src") is None, (tag, attrs)
        assert tag not in ("link", "iframe", "img"), attrs
    own = found.scripts[-1]
    assert "Plotly" in own
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|import\(", own)


def test_nothing_slow_runs_before_the_text_is_on_the_screen(story: list[Event]) -> None:
    found = seen(page_of_run(run_of(story)))
    kinds = [attrs.get("type") for tag, attrs in found.tags if tag == "script"]
    assert kinds == ["application/json", "application/json", "text/plain", None]
    library, own = found.scripts[-2:]
    assert len(library) > 1_000_000
    assert len(own) < 20_000
    assert own.index("await painted()") < own.index("load();")


def test_what_others_wrote_into_the_journal_is_text(story: list[Event]) -> None:
    told: list[Event] = [
        replace(event, name=f"{EVIL}-{event.node_id}") if isinstance(event, NodeUp) else event
        for event in story
    ]
    told.append(Warned(at_s=1001.0, what=EVIL))
    told.append(Reported(at_s=1100.0, step=5, epoch=1, metrics={EVIL: 0.5}))
    told.append(LaunchTried(at_s=1001.0, market=EVIL, node_type="w", wanted=1, why=EVIL))
    clean, dirty = seen(page_of_run(run_of(story))), seen(page_of_run(run_of(told)))
    assert len(dirty.scripts) == len(clean.scripts)
    known = {tag for tag, _ in clean.tags} | {"strong", "ul", "li"}  # of the warnings
    assert {tag for tag, _ in dirty.tags} <= known
    assert EVIL in dirty.text
    for figure in dirty.json["figures"]:  # plotly reads some HTML in its texts
        assert "<script" not in json.dumps(figure)


def test_what_is_left_out_is_said_at_the_top(story: list[Event]) -> None:
    story = [
        replace(e, usd_per_hour=None) if isinstance(e, NodeUp) and e.node_id == "a" else e
        for e in story
    ]
    run = run_of(story, damaged_lines=2, missing=("cluster journal s3://x is gone",))
    page = page_of_run(run)
    numbers = {name: value for name, value, _ in page.numbers}
    assert numbers["node time"].startswith("over $")
    assert numbers["billed"].startswith("over $")
    text = seen(page).text
    for words in ("2 damaged journal lines", "s3://x is gone", "node i-a: no price for", "over $"):
        assert words in text, words


@pytest.mark.parametrize("count", [0, 1, 3, 10])
def test_a_page_can_be_written_however_little_is_known(story: list[Event], count: int) -> None:
    found = seen(page_of_run(run_of(sorted(story, key=lambda e: e.at_s)[:count])))
    assert set(found.json) == {"report-data", "figures"}


def test_a_sweeps_page_has_its_trials_and_their_bills() -> None:
    sweep = two_trials().told()
    found = seen(page_of_sweep(sweep))
    summary = summarize_sweep(sweep)
    assert found.json["report-data"]["cost"] == plain(summary.cost)
    for trial in summary.trials:
        assert trial.trial in found.text
    drawn = [figure["id"] for figure in found.json["figures"]]
    assert drawn[:2] == ["trials", "nodes"]


def test_without_plotly_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ConfigError, match=r"pip install 'spotray\[report\]'"):
        to_html(Page(title="t", subtitle="s", numbers=()))


def test_a_long_table_is_cut_and_says_so() -> None:
    rows = [[str(i)] for i in range(2001)]
    section = Section(name="s", title="S", tables=[Table(caption="Rows", columns=["i"], rows=rows)])
    found = seen(Page(title="t", subtitle="s", numbers=(), sections=[section]))
    assert "the first 2000 of 2001 rows" in found.text
    assert sum(tag == "td" for tag, _ in found.tags) == 2000
