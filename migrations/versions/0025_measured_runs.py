"""Lists of a device's runs, and of those that brought a measurement, are read by index."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

MEASURED = {name: sa.text("median_us IS NOT NULL") for name in ("sqlite_where", "postgresql_where")}


def upgrade() -> None:
    op.drop_index("ix_runs_device_id", "runs")
    op.create_index("ix_runs_device_id_id", "runs", ["device_id", "id"])
    op.create_index("ix_runs_measured", "runs", ["organisation_id", "state", "id"], **MEASURED)
    op.create_index("ix_runs_measured_on", "runs", ["device_id", "verdict", "id"], **MEASURED)


def downgrade() -> None:
    for name in ("ix_runs_measured_on", "ix_runs_measured", "ix_runs_device_id_id"):
        op.drop_index(name, "runs")
    op.create_index("ix_runs_device_id", "runs", ["device_id"])
