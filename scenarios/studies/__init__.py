"""Studies: many runs of a scenario that answer one question."""
