"""What the tests of the dashboard share: a seeded farm, and Chromium."""

from tests.dashboard.conftest import _see_devices as _see_devices
from tests.dashboard.conftest import address as address
from tests.dashboard.conftest import browser as browser
from tests.dashboard.conftest import seeded as seeded
from tests.dashboard.conftest import served as served
from tests.dashboard.conftest import web as web
