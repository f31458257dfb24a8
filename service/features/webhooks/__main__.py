"""`python -m service.features.webhooks`: the courier as a process of its own, where API processes have no way out.

It needs the database and a way out; it has neither the signing key nor the storage. Settings are the farm's own
(POCKFARM_*), and API processes beside it are told to leave sending to it: POCKFARM_SEND_WEBHOOKS=false.
"""

from __future__ import annotations

import signal
from pathlib import Path

from device_agents.wire.service_manager import tell_manager
from service.base.logs import set_up_logs
from service.base.settings import Settings
from service.features.webhooks.courier import Courier
from service.operations.alive import BEAT_S, give_sign
from service.store.database.engine import Database
from service.store.database.schema import refuse_other_schema

STOPPING = {signal.SIGTERM, signal.SIGINT}


def main() -> None:
    """Sends deliveries until it is asked to end, and gives signs of life while the courier looks."""
    settings = Settings()
    set_up_logs(settings, "courier")
    refuse_other_schema(settings.database, "the courier")
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # before there are threads: theirs must not take them
    database = Database(settings.database)
    courier = Courier(database, settings)
    courier.start()
    tell_manager(b"READY=1")
    path = Path(settings.alive_file) if settings.alive_file else None
    while True:
        if courier.is_well():
            give_sign(path)
        if signal.sigtimedwait(STOPPING, BEAT_S) is not None:
            break
    courier.stop()
    database.close()


if __name__ == "__main__":
    main()
