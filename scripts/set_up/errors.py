"""Why set-up ends early."""


class SetUpError(Exception):
    """Set-up cannot go on; the message says what to do."""
