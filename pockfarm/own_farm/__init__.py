"""The farm that `pockfarm up` runs on this machine: its parts, their supervisor, and its state folder."""
