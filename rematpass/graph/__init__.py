"""torch graph -> numbers: capture, op traits, facts, constraints, stages."""
