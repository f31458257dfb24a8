"""The farm's signatures for readers without access to it: an envelope, and its keys' way to the root."""

from __future__ import annotations

from device_agents.wire import dumps
from device_agents.wire.receipt import Signed
from service.store.farm import Farm
from service.store.key_list import rooted


def signed(farm: Farm, payload_type: str, value: object) -> Signed:
    """Returns the value in the farm's envelope. Raises: KeyListError (the list is damaged)."""
    listed = rooted(farm.settings.key_list_path)
    return Signed(
        schema="pockfarm.signed/1",
        signed=farm.signer.sign(payload_type, dumps(value)),
        signing_key=farm.signer.server_key(),
        root=listed.root if listed else None,
        key_list=listed.key_list if listed else None,
    )
