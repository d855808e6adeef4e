"""The same step at other sizes: what a decision holds there, and what would be decided there."""
