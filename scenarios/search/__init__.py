"""`batchlab search`: find a policy for a scenario on one part of its traffic, and prove it on the other."""
