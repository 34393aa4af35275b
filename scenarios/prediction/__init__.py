"""Intervals of the prediction itself: where a metric of the real server lies, by how its price was come by."""
