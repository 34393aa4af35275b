"""The pages, and what writes some of them."""
