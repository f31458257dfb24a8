"""A pytest plugin (`-p tests.service.without_features`): the farm of this process has no optional features."""

from __future__ import annotations

from service import feature_list
from service.people.permissions import RULES

feature_list.FEATURES = ()
feature_list.FEATURE_SETTINGS = ()
feature_list.PERMISSIONS = RULES
