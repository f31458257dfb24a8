"""Programs that work on a checkout: set-up, the documentation as a site, releases, notices."""
