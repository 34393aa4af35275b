"""Capacity planning: the largest rate, the fewest replicas, the best settings that meet an SLO, and how sure that is."""
