"""Findings about a run, each a rule in a file of its own, and what-if runs that try their remedies."""
