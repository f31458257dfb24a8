"""What the tests of the service share: databases of both kinds, and farms on them."""

from tests.service.conftest import database_url as database_url
from tests.service.conftest import empty_url as empty_url
from tests.service.conftest import farm as farm
from tests.service.conftest import live as live
from tests.service.conftest import migrated_postgres as migrated_postgres
from tests.service.conftest import migrated_sqlite as migrated_sqlite
from tests.service.conftest import newer_code as newer_code
from tests.service.conftest import postgres as postgres
from tests.service.conftest import said as said
from tests.service.conftest import small_farm as small_farm
from tests.service.conftest import sqlite_url as sqlite_url
from tests.service.conftest import storage_url as storage_url
