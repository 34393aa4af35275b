"""`python -m scenarios.claims > docs/claims.md` writes the page of claims again."""

from scenarios.claims.page import page

if __name__ == "__main__":
    print(page(), end="")
