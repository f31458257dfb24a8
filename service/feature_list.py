"""The optional features of this farm, a line for each. Take a line away, and the farm runs without the feature."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_settings import BaseSettings

from service.features.feature import Feature
from service.features.webhooks.feature import WEBHOOKS
from service.people.permissions import RULES, Rule

FEATURES: tuple[Feature, ...] = (WEBHOOKS,)
PERMISSIONS: Mapping[str, Rule] = {
    **RULES,
    **{address: rule for feature in FEATURES for address, rule in feature.permissions.items()},
}
"""Rules of every address that the farm serves."""
FEATURE_SETTINGS: tuple[type[BaseSettings], ...] = tuple(
    feature.settings for feature in FEATURES if feature.settings is not None
)
"""Settings that are no field of `Settings`."""
