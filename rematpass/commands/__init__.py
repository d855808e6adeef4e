"""Commands that plan: plan, explain, frontier, plot, diff, max-size, devices."""
