"""The report as an HTML file: what is in it, and that nothing in a plan can break out of its data."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import rematpass
from rematpass.errors import RematError
from rematpass.report.page import format_page, write_page


class Page(HTMLParser):
    """Elements with their ids, what they load, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.loads += [found[name] for name in ("src", "href") if name in found]
        self.open.append(tag)

    def handle_endtag(self, tag):
        self.open.append("")

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)


@pytest.fixture(scope="module")
def plan() -> rematpass.Plan:
    with torch.device("meta"):
        model, x = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3))), torch.empty(256, 64)
    return rematpass.plan(model, (x,), loss=torch.sum, device="l4", memory_budget="none")


def data_of(text: str):
    return json.loads(Page(text).scripts[0])


def test_everything_is_inside(plan):
    text = format_page(plan)
    page = Page(text)
    assert page.loads == []
    assert len(page.scripts) == 2
    assert "//" not in re.sub(r"<!doctype html>", "", text.split("<script>")[1]), "no address, no comment"
    used = set(re.findall(r'byId\("([\w-]+)"\)', page.scripts[1]))
    assert used <= set(page.ids)


def test_figures_are_the_plans(plan):
    data = data_of(format_page(plan, title="a model"))
    assert (data["title"], data["peak_bytes"]) == ("a model", plan.peak_bytes)
    assert sum(row["total_bytes"] for row in data["rows"]) == sum(value.bytes for value in plan.values)
    stacked = [sum(at) for at in zip(*(row["live_bytes"] for row in data["timeline"]["rows"]), strict=True)]
    assert stacked == [point.live_bytes for point in plan.timeline]
    assert max(stacked) == stacked[data["peak_position"]] == data["peak_bytes"]


def test_names_cannot_break_out(plan):
    nasty = "</script><script>alert(1)</script><!-- &amp;"
    values = (dataclasses.replace(plan.values[0], source=nasty), *plan.values[1:])
    page = Page(format_page(dataclasses.replace(plan, values=values), title=nasty))
    assert len(page.scripts) == 2
    data = json.loads(page.scripts[0])
    assert data["title"] == nasty
    assert nasty in {row["source"] for row in data["rows"]}


def test_a_file_is_whole_or_not_there(plan, tmp_path):
    path = write_page(plan, tmp_path / "report.html")
    assert path.read_text().endswith("</html>\n")
    with pytest.raises(RematError, match="cannot write the report"):
        write_page(plan, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
