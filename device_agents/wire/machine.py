"""The machine that an agent runs on: sent in a header as it enrols and renews. Standard library only.

A header, so that a farm which is older than it does not read it, and an agent which is older does not send it. The farm
compares it with that of the agent before: two machines with one identity are a copied memory card or state folder.
"""

from dataclasses import dataclass

from device_agents.wire.codec import check

MACHINE_HEADER = "X-Pockfarm-Machine"
"""The header on enrolments and renewals: `dumps(Machine)`."""
MOST_MACHINE_CHARACTERS = 2000


@dataclass(frozen=True)
class Machine:
    """The numbers that tell machines apart; an empty field is not known."""

    serial: str = ""
    """The serial number of the board, its firmware or, without one, its first network card; a copied memory card does
    not carry it.
    """
    boot_id: str = ""
    """Random, made by the kernel at each boot."""
    host: str = ""
    """The host name, for people: it is copied along with a card."""
    folder: str = ""
    """Path of the agent's state folder."""
    folder_id: str = ""
    """Inode of that folder: a copy on the same machine has another."""

    def __post_init__(self) -> None:
        for name, most in (("serial", 100), ("boot_id", 40), ("host", 100), ("folder", 300), ("folder_id", 40)):
            check(len(getattr(self, name)) <= most, name, f"at most {most} characters")
