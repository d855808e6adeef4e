"""The demo: one real training run, side by side.

In: settings. Out: measured rows, a verdict and a plot. Never part of what `import rematpass` loads.
"""
