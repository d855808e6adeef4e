"""One independent check per arrow, and the measurement of real peaks."""
