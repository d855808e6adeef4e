"""plan -> line, table, plot."""
