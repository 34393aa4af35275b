"""Run folders: their names, the rule for what is there already, writing and reading them."""
