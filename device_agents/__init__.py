"""The agent on or beside a board: pulls signed bundles, runs them under limits, measures, reports."""

AGENT_VERSION = "0.1.0"
