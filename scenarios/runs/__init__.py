"""Runs: simulated, compared, shown, stored.

The package is called `runs` because `scenarios.run` is the function of the public interface: a package of that name
would take its place as soon as it was imported.
"""
