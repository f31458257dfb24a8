"""What the tests of agents share: a farm that plays, and agents as processes."""

from tests.agents.conftest import always_scripts as always_scripts
from tests.agents.conftest import farm as farm
from tests.agents.conftest import start_agent as start_agent
