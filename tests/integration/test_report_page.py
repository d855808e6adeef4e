"""The report in a real browser: it draws everything, sorts, answers the mouse, and asks nobody for anything."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import rematpass
from bench import screenshot
from rematpass.report.page import format_page
from tests.processes import start_python

needs_browser = pytest.mark.skipif(screenshot.find_browser() is None, reason="needs a Chromium on PATH")

# Stands before the page's own script: counts what is drawn on which canvas, and what goes wrong.
BEFORE = """<script>
const seen = { errors: [], blocked: [], arcs: {}, points: {}, words: {} };
addEventListener("error", (event) => seen.errors.push(event.message));
addEventListener("securitypolicyviolation", (event) => seen.blocked.push(event.blockedURI));
const count = (name, into) => {
  const real = CanvasRenderingContext2D.prototype[name];
  CanvasRenderingContext2D.prototype[name] = function (...given) {
    const id = this.canvas.id;
    if (into === "words") (seen.words[id] ??= []).push(given[0]); else seen[into][id] = (seen[into][id] || 0) + 1;
    return real.apply(this, given);
  };
};
count("arc", "arcs"); count("lineTo", "points"); count("fillText", "words");
</script>"""
# Stands behind it: uses the page as a person does, and writes down what it shows.
AFTER = """<script>
const column = (n) => [...document.querySelectorAll("#rows tr")].map((row) => row.children[n].textContent);
const click = (n) => document.querySelectorAll("#columns button")[n].click();
const drawn = structuredClone({ arcs: seen.arcs, points: seen.points, words: seen.words });
const move = (id, share) => {
  const box = document.getElementById(id).getBoundingClientRect();
  const at = { clientX: box.left + 70 + share * (box.width - 85), clientY: box.top + 50 };
  document.getElementById(id).dispatchEvent(new MouseEvent("mousemove", at));
  return document.getElementById(`${id}-hint`).textContent;
};
const ink = (id) => {
  const canvas = document.getElementById(id);
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(pixels.buffer)).size;
};
const shown = { drawn, colours: { timeline: ink("timeline"), curve: ink("curve") }, first: column(5), modules: {} };
click(8); shown.modules.up = column(8); click(8); shown.modules.down = column(8);
click(1); shown.sizes = column(1); shown.sort = document.querySelectorAll("#columns th")[1].getAttribute("aria-sort");
shown.hints = [move("timeline", 0.001), move("timeline", 0.995), move("curve", 1)];
const filter = document.getElementById("filter");
filter.value = "GELU"; filter.dispatchEvent(new Event("input"));
shown.filtered = document.querySelectorAll("#rows tr").length;
shown.loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
fetch("https://example.invalid/").catch(() => {});
setTimeout(() => {
  document.title = JSON.stringify({ ...shown, errors: seen.errors, blocked: seen.blocked });
}, 500);
</script>"""


@pytest.fixture(scope="module")
def made() -> tuple[rematpass.Plan, rematpass.Curve]:
    with torch.device("meta"):
        model, x = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))), torch.empty(256, 64)
    step = {"loss": torch.sum, "device": "l4"}
    curve = rematpass.frontier(model, (x,), count=6, **step)
    return rematpass.plan(model, (x,), memory_budget=curve.points[1].peak_bytes, **step), curve


@pytest.fixture(scope="module")
def page(made) -> str:
    return format_page(*made, title="a small model")


def bytes_of(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]


@pytest.mark.browser
@needs_browser
def test_everything_is_drawn_sorted_and_answers_and_nothing_is_loaded(made, page, tmp_path):
    plan, curve = made
    probed = page.replace('<script type="application/json"', BEFORE + '<script type="application/json"')
    path = tmp_path / "probed.html"
    path.write_text(probed.replace("</body>", f"{AFTER}</body>"))
    text, said = screenshot.drawn_page(path)
    title = re.search(r"<title>(.*?)</title>", text, re.DOTALL)[1]
    shown = json.loads(title.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert (shown["errors"], shown["loaded"]) == ([], [])
    assert [line for line in said.splitlines() if "example.invalid" not in line] == []
    assert shown["blocked"] == ["https://example.invalid/"], "the page itself forbids it"
    drawn = shown["drawn"]
    assert drawn["arcs"]["curve"] == 2 * len(curve.points)
    rows = len(re.findall(r'"label":', page))
    assert drawn["points"]["timeline"] >= 4 * len(plan.timeline) * rows
    assert f"peak {plan.peak_bytes / 2**10:.1f} KiB" in drawn["words"]["timeline"]
    assert "this plan" in drawn["words"]["curve"]
    assert min(shown["colours"].values()) > 4
    assert shown["first"] == sorted(shown["first"])
    assert shown["first"][0] == "keep"
    modules = shown["modules"]
    assert len(set(modules["up"])) > 1
    assert modules["down"] == modules["up"][::-1]
    sizes = list(map(bytes_of, shown["sizes"]))
    assert (sizes, shown["sort"]) == (sorted(sizes, reverse=True), "descending")
    first, last, cheapest = shown["hints"]
    assert first.startswith(f"forward, op 0: {plan.timeline[0].op}: ")
    assert last.startswith(f"backward, op {len(plan.timeline) - 1}: {plan.timeline[-1].op}: ")
    assert f"memory_budget={curve.points[0].peak_bytes} " in cheapest
    assert shown["filtered"] < len(shown["first"])


@pytest.mark.browser
@needs_browser
def test_a_picture_of_it(page, tmp_path):
    (tmp_path / "report.html").write_text(page)
    assert screenshot.take_picture(tmp_path / "report.html", tmp_path / "report.png", 900, 700) == ""
    picture = (tmp_path / "report.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert [int.from_bytes(picture[at : at + 4]) for at in (16, 20)] == [900, 700]


def test_no_browser_is_one_message_and_code_2(tmp_path):
    (tmp_path / "report.html").write_text("<!doctype html>")
    words = ["-m bench.screenshot", tmp_path / "report.html", tmp_path / "report.png"]
    process = start_python(*words, PATH=str(Path(sys.executable).parent))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("bench.screenshot: error: no Chromium is here: none of chromium, ")
    assert len(err.splitlines()) == 1
