"""Running a farm: health, sweeps, webhooks, retention, organisations, the log of results, backups."""
