"""Settings of webhooks."""

from __future__ import annotations

import ipaddress

from pydantic import field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class WebhookSettings(BaseSettings):
    """Environment variables `POCKFARM_<NAME>` override the defaults."""

    model_config = SettingsConfigDict(env_prefix="POCKFARM_", extra="ignore", frozen=True)

    webhooks_per_organisation: int = 20
    send_webhooks: bool = True
    """Whether API processes send webhooks; if not, a process of its own does: `python -m service.features.webhooks`."""
    webhook_networks: str = ""
    """Networks beside the open internet that webhooks may lead to: `10.20.0.0/16, 127.0.0.1`."""

    @field_validator("webhook_networks")
    @classmethod
    def check_networks(cls, text: str) -> str:
        """Raises: ValueError, for an entry that is not a network."""
        for part in text.split(","):
            if part.strip():
                ipaddress.ip_network(part.strip(), strict=False)
        return text
