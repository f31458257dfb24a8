"""PockFarm's farm: REST API, database, storage, signing, dashboard."""
