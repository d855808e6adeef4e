"""decision -> two FX graphs. The only writer of FX."""
