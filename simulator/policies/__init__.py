"""Batching policies, a file each."""
