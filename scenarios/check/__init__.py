"""Put a policy through the laws on random scenarios, and shrink what breaks one to a few requests."""
