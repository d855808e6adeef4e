"""Commands that plan, measure and look: plan, explain, frontier, plot, report, max-size, verify, diff, devices."""
