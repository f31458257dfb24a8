"""Mistakes of who runs a farm, on its machine."""

from __future__ import annotations

from tests.mistakes.record import Mistake

ADMIN = (
    Mistake("admin", "no command", "", "COMMAND", "service.admin", "usage:"),
    Mistake("admin", "a misspelt command", "migrat", "'migrat'", "COMMAND", "choose from 'migrate'"),
    Mistake("admin", "a role that there is not", "create-key --role boss", "'boss'", "--role", "choose from 'user'"),
    Mistake("admin", "a key of a farm that is none", "POCKFARM_STATE=none1 create-key", "schema none", "the database",
            "service.admin migrate", code=1),
    Mistake("admin", "garbage of a farm that is none", "POCKFARM_STATE=none2 gc", "schema none", "the database",
            "service.admin migrate", code=1),
    Mistake("admin", "a copy of a farm that is none", "POCKFARM_STATE=none3 backup copy.pfbackup", "schema none",
            "the database", "service.admin migrate", code=1),
    Mistake("admin", "a database that is down",
            "POCKFARM_DATABASE_URL=postgresql+psycopg://nobody:secret@127.0.0.1:1/farm create-key", "does not answer",
            "postgresql+psycopg://nobody:***@127.0.0.1:1/farm", "is it up?", code=1),
    Mistake("admin", "an address of no database", "POCKFARM_DATABASE_URL=farm create-key", "no address of a database",
            "POCKFARM_DATABASE_URL", "postgresql+psycopg://", code=1),
    Mistake("admin", "a state folder that cannot be", "POCKFARM_STATE=/proc/farm create-key", "No such file",
            "/proc/farm", "POCKFARM_STATE", code=1),
    Mistake("admin", "a copy that is not there", "POCKFARM_STATE=none4 restore nothing.pfbackup", "No such file",
            "nothing.pfbackup", "nothing was restored", code=1),
    Mistake("admin", "a file that is no copy", "POCKFARM_STATE=none5 restore net.onnx", "no backup", "net.onnx",
            "nothing was restored", code=1),
    Mistake("admin", "keys that nobody signed", "accept-keys net.onnx", "no signed list of keys", "net.onnx",
            "the root signs", code=1),
    Mistake("admin", "a rotation without a key", "rotate-key", "is missing", "next-signing-key.json", "prepare-key",
            code=1),
    Mistake("admin", "an agent that is no file", "agent-release nothing.pyz", "No such file", "nothing.pyz",
            "agent-file", code=1),
    Mistake("admin", "a token for a misspelt class", "enrolment-token --device-class raspbery-pi-5",
            "no device class is called 'raspbery-pi-5'", "device_class", "did you mean 'raspberry-pi-5'?", code=1),
)  # fmt: skip
