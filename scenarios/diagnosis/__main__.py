"""`python -m scenarios.diagnosis`: print the page of findings, docs/diagnosis.md."""

from scenarios.diagnosis.page import page

print(page(), end="")
