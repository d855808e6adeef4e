"""ints in, decision out: flow, closure, frontier, chain, liveness, bound. Knows nothing of torch."""
