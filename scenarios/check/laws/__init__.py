"""The laws that a policy is held to, a small function each."""
