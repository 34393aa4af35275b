"""The `cost:` of a scenario: where step times come from. A kind is one file here and its place in a union of `kinds`.

The config of a kind has `kind`, its other keys, and `build(scenario)`, which makes the cost model of it.
"""

from scenarios.schema.later import by_word

_CLASSES = {
    "linear": "LinearCostConfig",
    "roofline": "RooflineCostConfig",
    "profile": "ProfileCostConfig",
    "auto": "AutoCostConfig",
}
cost_at = by_word("kind", {word: f"{__name__}.{word}:{name}" for word, name in _CLASSES.items()})
"""The place of a built-in kind's config, for `later`."""
