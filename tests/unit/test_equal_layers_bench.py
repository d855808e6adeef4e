"""`bench/equal_layers.py` on two layers: its rows are plans that fit, and no plan beats its bound."""

import json

from bench import equal_layers


def test_two_layers(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(equal_layers, "WIDTH", 256)
    monkeypatch.setattr(equal_layers, "PERCENTS", range(20, 81, 30))
    path = tmp_path / "rows.json"
    assert equal_layers.main(["--blocks", "llama", "--layers", "2", "--words", "64", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["percent"] for row in rows] == [20, 50, 80]
    assert all(row["extra"] >= row["bound"] >= 0 and row["gap"] >= 0 for row in rows)
    assert [row["extra"] for row in rows] == sorted((row["extra"] for row in rows), reverse=True)
    assert rows[0]["extra"] > 0
    near = sum(row["gap"] <= equal_layers.WANTED for row in rows)
    worst = 100 * max(row["gap"] for row in rows)
    last = f"llama, 64 words: {near} of 3 budgets within 2 % of the bound, the worst {worst:.1f} % above\n"
    assert capsys.readouterr().out.endswith(last)
