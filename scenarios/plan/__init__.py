"""Capacity planning: the largest rate, the fewest replicas, the best settings for an SLO, and how sure that is."""
