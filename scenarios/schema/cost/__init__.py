"""The `cost:` of a scenario: where step times come from. A kind is one file here and its place in a union of `kinds`.

The config of a kind has `kind`, its other keys, and `build(scenario)`, which makes the cost model of it.
"""

from scenarios.schema.later import by_word

_PLACES = {
    "linear": "scenarios.schema.cost.linear:LinearCostConfig",
    "roofline": "scenarios.schema.cost.roofline:RooflineCostConfig",
    "profile": "scenarios.schema.cost.profile:ProfileCostConfig",
    "auto": "scenarios.schema.cost.auto:AutoCostConfig",
}
cost_at = by_word("kind", _PLACES)
"""The place of a built-in kind's config, for `later`."""
