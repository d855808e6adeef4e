"""Write the golden tables anew: `python -m tests.golden.regenerate`. Read the diff before you commit it."""

from tests.golden.graphs import FOLDER, GRAPHS, table_of

if __name__ == "__main__":
    for name in GRAPHS:
        (FOLDER / name).write_text(table_of(name), encoding="utf-8")
