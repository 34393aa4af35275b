"""Makers of the shipped profiles and tables, which the wheel leaves out.

`python -m calibration.makers ROOT [NAME ...]` makes them again from public sources (`make tables ROOT=...`).
"""
