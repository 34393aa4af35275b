"""What is wrong with a run: findings, each a rule in a file of its own, and what-if runs that try their remedies."""
