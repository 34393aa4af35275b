"""Makers of the shipped profiles and tables, which the wheel leaves out.

`python -m tools.tables ROOT [NAME ...]` makes them again from public sources (`make tables ROOT=...`).
"""
