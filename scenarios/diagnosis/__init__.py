"""Findings about a run, each made by a rule, and what-if runs that try their remedies."""
