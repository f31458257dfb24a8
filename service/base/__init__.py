"""The ground floor of the service: settings, problems (RFC 9457), logs, pagination, confined children."""
